package index

// Continuations. The full blocks that a finished placement left after its prompt's own are of unknown content: each
// has tokens that the engine generated. They are linked in order and filed under the prompt's last full block (its
// root when it has none), together with a hash of the prompt's remaining tokens. A later prompt that begins with the
// whole of the earlier one is expected to go on with what the engine said. Only the newest one is kept for each key.

// file files the continuation that begins with block i.
func (s *shadow) file(i int32, key Hash, tail uint64, tailLen int) {
	entry := s.table.ensure(key)
	if entry.b != 0 {
		s.blocks[entry.b-1].filed = false
	} else {
		s.note(key, hasContinuation, true)
	}
	entry.b = uint64(i) + 1
	b := &s.blocks[i]
	b.hash, b.mark, b.tailLen, b.filed = key, tail, int32(tailLen), true
}

// unfile drops the record of the continuation that begins with block i, if there is one.
func (s *shadow) unfile(i int32) {
	b := &s.blocks[i]
	if !b.filed {
		return
	}
	b.filed = false
	entry := s.table.find(b.hash)
	entry.b = 0
	s.note(b.hash, hasContinuation, false)
	s.table.prune(entry)
}

// continuation returns the first block of the continuation that p, of which depth blocks are held, goes on with, or
// none. p must have another full block, so that it is longer than any tail.
func (s *shadow) continuation(p *Prompt, depth int) int32 {
	_, w := s.table.get(p.key(depth))
	if w == 0 {
		return none
	}
	b := &s.blocks[w-1]
	end := depth*p.BlockSize + int(b.tailLen)
	if p.tailHash(depth, end) != b.mark {
		return none
	}
	return int32(w - 1)
}

// depth returns how many leading blocks of p a lookup finds, at most limit, when it is known to find at least the
// first from of them.
func (s *shadow) depth(p *Prompt, from, limit int) int {
	d := from
	for d < limit {
		if s.first(p.Hashes[d]) != none {
			d++
			continue
		}
		c := s.continuation(p, d)
		if c == none {
			break
		}
		for ; c != none && d < limit; c = s.blocks[c].right {
			d++
		}
	}
	return d
}

// adoption is what adopting a continuation changed.
type adoption struct {
	key     Hash
	tail    uint64
	tailLen int32
	blocks  []int32 // adopted ones, in order
	// rest is the continuation's first block beyond the prompt, or none; refiled says that it heads a continuation
	// of its own.
	rest    int32
	refiled bool
}

// adopt gives the blocks of the continuation that begins with block c the hashes that p has from position depth on,
// as far as p has full blocks.
func (s *shadow) adopt(p *Prompt, depth int, c int32) adoption {
	b := &s.blocks[c]
	ad := adoption{key: b.hash, tail: b.mark, tailLen: b.tailLen, rest: c}
	s.unfile(c)
	d := depth
	for ; ad.rest != none && d < len(p.Hashes); d++ {
		i := ad.rest
		ad.rest = s.blocks[i].right
		ad.blocks = append(ad.blocks, i)
		s.addCopy(i, p.Hashes[d])
	}
	if ad.rest == none {
		return ad
	}
	s.blocks[ad.rest].left = none
	if _, w := s.table.get(p.key(d)); w == 0 {
		ad.refiled = true
		s.file(ad.rest, p.key(d), Next(p.key(d), nil).Lo, 0)
	}
	return ad
}

// unadopt undoes adopt.
func (s *shadow) unadopt(ad *adoption) {
	if ad.refiled {
		s.unfile(ad.rest)
	}
	right := ad.rest
	for n := len(ad.blocks) - 1; n >= 0; n-- {
		i := ad.blocks[n]
		s.dropCopy(i)
		b := &s.blocks[i]
		b.content, b.left, b.right = generated, none, right
		if right != none {
			s.blocks[right].left = i
		}
		right = i
	}
	s.file(ad.blocks[0], ad.key, ad.tail, int(ad.tailLen))
}
