package index

import "slices"

// holding is what one live placement has of a shadow's pool, and what it takes to undo it.
type holding struct {
	blocks []int32 // held blocks in the prompt's order
	hits   int     // so many of them were hit, the others taken
	// was tells what the taken blocks were before, in the same order; it is empty when none of them existed.
	was     []block
	adopted []adoption
	rest    []uint32 // the prompt's tokens after the last full block
	tokens  int      // of the prompt
	full    int      // full blocks of the prompt
	key     Hash     // of the last full block, or the root
	tail    uint64   // hash of the prompt's tokens after the last full block
	before  counts
	after   counts
}

// counts are a shadow's counts at one moment.
type counts struct{ operations, evictions uint64 }

func (s *shadow) counts() counts { return counts{s.operations, s.evictions} }

// record plays the admission of p: look up, touch the hits, take blocks for the rest of the prompt and store its full
// blocks under their hashes (vLLM 0.32.0, v1/core/kv_cache_manager.py: get_computed_blocks, allocate_slots).
// h must be empty but may have room.
func (s *shadow) record(p *Prompt, h *holding) {
	h.before = s.counts()
	s.operations++
	s.live++
	h.tokens, h.full = len(p.Tokens), len(p.Hashes)
	h.rest = slices.Clone(p.Tokens[h.full*p.BlockSize:])
	h.key = p.key(h.full)
	h.tail = p.tailHash(h.full, len(p.Tokens))
	h.hits = s.adoptAll(p, h)
	for d := range h.hits {
		i := s.first(p.Hashes[d])
		b := &s.blocks[i]
		if b.refs == 0 {
			s.unlink(i)
		}
		b.refs++
		b.claims = max(b.claims, b.claims+1) // stays at its maximum: such a block is held for good reason
		h.blocks = append(h.blocks, i)
	}
	need := (len(p.Tokens) + s.blockSize - 1) / s.blockSize
	for d := h.hits; d < need; d++ {
		i, was := s.take()
		if was.content != absent || len(h.was) > 0 {
			h.was = padAbsent(slices.Grow(h.was, need-h.hits-len(h.was)), d-h.hits)
			h.was = append(h.was, was)
		}
		if d < h.full {
			s.addCopy(i, p.Hashes[d])
		}
		h.blocks = append(h.blocks, i)
	}
	h.after = s.counts()
}

// padAbsent makes was n long with blocks that did not exist.
func padAbsent(was []block, n int) []block {
	for len(was) < n {
		was = append(was, block{content: absent})
	}
	return was
}

// adoptAll adopts what p continues and returns how many leading blocks of p a lookup then finds.
func (s *shadow) adoptAll(p *Prompt, h *holding) int {
	limit := p.limit()
	d := 0
	for d < limit {
		if s.first(p.Hashes[d]) != none {
			d++
			continue
		}
		c := s.continuation(p, d)
		if c == none {
			break
		}
		h.adopted = append(h.adopted, s.adopt(p, d, c))
	}
	return d
}

// finish plays the generation of outputs tokens and the end of the request. The newest token has no KV yet, so all
// tokens but that one are in blocks. Blocks are freed last one first: those without a hash to the front of the queue,
// full ones to its end, so that a prompt's tail is evicted before its head. What was generated goes by its tokens if they
// are known, else it is of unknown content.
func (s *shadow) finish(h *holding, outputs int, generatedTokens []uint32) {
	s.operations++
	s.live--
	need, full := s.extent(h, outputs)
	for len(h.blocks) < need {
		i, _ := s.take()
		h.blocks = append(h.blocks, i)
	}
	if len(generatedTokens) >= outputs-1 {
		s.storeGenerated(h, full, generatedTokens)
	}
	for d := h.full; d < full; d++ {
		b := &s.blocks[h.blocks[d]]
		b.content, b.left, b.right = generated, none, none
		if d > h.full {
			b.left = h.blocks[d-1]
			s.blocks[b.left].right = h.blocks[d]
		}
	}
	if full > h.full {
		s.file(h.blocks[h.full], h.key, h.tail, h.tokens%s.blockSize)
	}
	for d := len(h.blocks) - 1; d >= 0; d-- {
		i := h.blocks[d]
		b := &s.blocks[i]
		b.refs--
		if b.content == blank {
			s.pushFront(i)
		} else {
			s.pushBack(i)
		}
	}
	s.shrink()
}

// storeGenerated stores the full blocks after the prompt's own under their hashes. The first of them begins with the
// prompt's remaining tokens; the holding's known part then ends with the last of them.
func (s *shadow) storeGenerated(h *holding, full int, generatedTokens []uint32) {
	if full <= h.full {
		return
	}
	tokens := slices.Concat(h.rest, generatedTokens)
	for ; h.full < full; h.full++ {
		h.key = Next(h.key, tokens[:s.blockSize])
		tokens = tokens[s.blockSize:]
		s.addCopy(h.blocks[h.full], h.key)
	}
}

// extent returns how many blocks the request has at its end, and how many of them are full. However many outputs an
// engine reports, it cannot hold more blocks than it has.
func (s *shadow) extent(h *holding, outputs int) (need, full int) {
	most := max(len(h.blocks), s.capacity)
	outputs = min(max(outputs, 1), most*s.blockSize)
	tokens := h.tokens + outputs - 1
	need = min((tokens+s.blockSize-1)/s.blockSize, most)
	full = min(tokens/s.blockSize, need)
	return need, full
}

// maxSteps bounds the search for the places of hits that are taken back, to about 0.1 ms.
const maxSteps = 1 << 14

// takeBack undoes record. When nothing else happened to the pool since, it is then exactly as before. Otherwise:
// blocks that others hit stay; hits go back to the place that their latest other use gave them; taken blocks are as
// before if nothing else was evicted since (else the engine would have evicted those contents for the others), and
// blank and the first to be taken if not; what was learned about continuations stays known.
func (s *shadow) takeBack(h *holding) {
	now := s.counts()
	exact := now == h.after
	intact := now.evictions == h.after.evictions
	s.live--
	steps := maxSteps
	for d := len(h.blocks) - 1; d >= h.hits; d-- {
		was := block{content: absent}
		if n := d - h.hits; n < len(h.was) {
			was = h.was[n]
		}
		s.untake(h.blocks[d], &was, intact, &steps)
	}
	for d := h.hits - 1; d >= 0; d-- {
		s.untouch(h.blocks[d], &steps)
	}
	if exact {
		for n := len(h.adopted) - 1; n >= 0; n-- {
			s.unadopt(&h.adopted[n])
		}
		s.operations = h.before.operations
	} else {
		s.operations++
	}
	if intact {
		s.evictions = h.before.evictions
	}
	s.shrink()
}

// untake gives up block i, which the placement had taken.
func (s *shadow) untake(i int32, was *block, intact bool, steps *int) {
	b := &s.blocks[i]
	b.refs--
	b.claims--
	if b.claims > 0 {
		if b.refs == 0 {
			s.putBack(i, steps)
		}
		return
	}
	if b.content == known {
		s.dropCopy(i)
	}
	b.left, b.right = none, none
	if was.content == absent {
		s.drop(i)
		return
	}
	if !intact {
		s.pushFront(i)
		return
	}
	b.stamp, b.claims, b.next = was.stamp, was.claims, s.head
	switch was.content {
	case known:
		s.storeCopy(i, was.hash, was.mark, steps)
	case generated:
		s.restoreGenerated(i, was)
	}
	s.putBack(i, steps)
}

// restoreGenerated makes block i what was says, and a part of its continuation again as far as that is still there.
func (s *shadow) restoreGenerated(i int32, was *block) {
	b := &s.blocks[i]
	b.content = generated
	if l := was.left; l != none && s.blocks[l].content == generated && s.blocks[l].right == none {
		b.left, s.blocks[l].right = l, i
	}
	if r := was.right; r != none && s.blocks[r].content == generated && s.blocks[r].left == none {
		b.right, s.blocks[r].left = r, i
	}
	if _, w := s.table.get(was.hash); was.filed && w == 0 {
		s.file(i, was.hash, was.mark, int(was.tailLen))
	}
}

// untouch gives up block i, which the placement had hit.
func (s *shadow) untouch(i int32, steps *int) {
	b := &s.blocks[i]
	b.refs--
	b.claims--
	if b.refs > 0 {
		return
	}
	if b.claims > 0 {
		s.putBack(i, steps)
		return
	}
	s.dropCopy(i)
	b.left, b.right = none, none
	s.pushFront(i)
}
