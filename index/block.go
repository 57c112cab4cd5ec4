package index

// none is the index of no block.
const none = int32(-1)

// content is what a block of the pool holds.
type content uint8

const (
	// blank: no full block. Nothing was ever put in, it is not full, or nobody computed it.
	blank content = iota
	// known: a full block of which the index knows the hash.
	known
	// generated: a full block with tokens that the engine generated, so that its hash is unknown. The engine
	// itself knows and can hit it.
	generated
	// absent: the block does not exist. Only an undo record says so, of a block that was made for its placement.
	absent
)

// block is one block of a shadow's pool.
type block struct {
	// hash is a known block's hash, or the key that a continuation is filed under, in its first block.
	hash Hash
	// mark is a known block's place among its copies: the number of blocks that were stored before it. In a filed
	// continuation's first block it is the hash of the tailLen prompt tokens that the block begins with.
	mark uint64
	// stamp orders the free queue. It is the place that the block's latest freeing gave it, and is kept up to date
	// while other placements still hold the block, so that a placement can be taken back out of the order.
	stamp int64
	// prev and next are the neighbours in the free queue. They are left as they are when the block is taken out,
	// as a hint where it stood.
	prev, next int32
	// left and right are a known block's neighbours in the ring of blocks with the same hash, in the order in which
	// they were stored, or a generated block's neighbours in its continuation (none at the ends).
	left, right int32
	// refs counts the live placements that hold the block; a block that nobody holds is in the free queue.
	refs int32
	// claims counts the placements that brought or hit the block since it was last taken from the queue, less
	// those that were taken back. At zero no engine computed it.
	claims  uint32
	tailLen int32
	content content
	queued  bool
	// filed marks the first block of a continuation that the table has a record of.
	filed bool
}

// The free queue. It is ordered by stamp: freed full blocks go to the end and get the highest stamp, freed blocks
// without a hash go to the front and get the lowest, a negative one. Blocks that were never used come between the
// two; they are not stored (vLLM 0.32.0, v1/core/kv_cache_utils.py: FreeKVCacheBlockQueue; block_pool.py: free_blocks).

// unlink takes block i out of the free queue.
func (s *shadow) unlink(i int32) {
	b := &s.blocks[i]
	if b.prev == none {
		s.head = b.next
	} else {
		s.blocks[b.prev].next = b.next
	}
	if b.next == none {
		s.tail = b.prev
	} else {
		s.blocks[b.next].prev = b.prev
	}
	b.queued = false
	s.queued--
	if b.stamp < 0 {
		s.blanks--
	}
}

// insertBefore puts block i into the free queue before block at, at the end when at is none.
func (s *shadow) insertBefore(i, at int32) {
	b := &s.blocks[i]
	b.next = at
	if at == none {
		b.prev = s.tail
		s.tail = i
	} else {
		b.prev = s.blocks[at].prev
		s.blocks[at].prev = i
	}
	if b.prev == none {
		s.head = i
	} else {
		s.blocks[b.prev].next = i
	}
	b.queued = true
	s.queued++
	if b.stamp < 0 {
		s.blanks++
	}
}

func (s *shadow) pushFront(i int32) {
	s.low--
	s.blocks[i].stamp = s.low
	s.insertBefore(i, s.head)
}

// pushBack puts block i at the end of the queue, unless somebody else still holds it: then it only notes that its
// place would be there.
func (s *shadow) pushBack(i int32) {
	s.high++
	b := &s.blocks[i]
	b.stamp = s.high
	if b.refs == 0 {
		s.insertBefore(i, none)
	}
}

// putBack puts block i where its stamp belongs, looking first where it stood. It takes at most *steps steps and
// counts them off; when they are used up the block goes to the end.
func (s *shadow) putBack(i int32, steps *int) {
	stamp := s.blocks[i].stamp
	at := s.blocks[i].next
	if at != none && !s.blocks[at].queued {
		at = s.head
	}
	if at != none && s.high-stamp < stamp-s.blocks[at].stamp {
		at = none // nearer to the end
	}
	for *steps > 0 {
		before := s.tail
		if at != none {
			before = s.blocks[at].prev
		}
		switch {
		case before != none && s.blocks[before].stamp > stamp:
			at = before
		case at != none && s.blocks[at].stamp < stamp:
			at = s.blocks[at].next
		default:
			s.insertBefore(i, at)
			return
		}
		*steps--
	}
	s.pushBack(i)
}

// The ring of copies. The table's word a leads to the first stored copy still there, which serves the hits; its left
// neighbour is the last one (block_pool.py: BlockHashToBlockMap).

// addCopy makes block i known by hash h, as the last of its copies.
func (s *shadow) addCopy(i int32, h Hash) {
	s.storeCopy(i, h, s.stored, nil)
	s.stored++
}

// storeCopy makes block i known by hash h, in the place among its copies that mark gives it. Where that is not the
// last one, it takes at most *steps steps to find it and counts them off; when they are used up it becomes the last.
func (s *shadow) storeCopy(i int32, h Hash, mark uint64, steps *int) {
	b := &s.blocks[i]
	b.content, b.hash, b.mark = known, h, mark
	entry := s.table.ensure(h)
	if entry.a == 0 {
		entry.a = uint64(i) + 1
		b.left, b.right = i, i
		s.hashes++
		s.note(h, holdsBlock, true)
		return
	}
	first := int32(entry.a - 1)
	at := first
	for left := s.blocks[at].left; s.blocks[left].mark > mark; left = s.blocks[at].left {
		if at = left; at == first {
			entry.a = uint64(i) + 1
			break
		}
		if *steps--; *steps <= 0 {
			at = first
			break
		}
	}
	s.linkCopy(i, at)
}

// linkCopy puts block i into the ring, to the left of block at.
func (s *shadow) linkCopy(i, at int32) {
	left := s.blocks[at].left
	s.blocks[i].left, s.blocks[i].right = left, at
	s.blocks[left].right = i
	s.blocks[at].left = i
}

// dropCopy makes the known block i blank.
func (s *shadow) dropCopy(i int32) {
	b := &s.blocks[i]
	entry := s.table.find(b.hash)
	switch {
	case b.right == i:
		entry.a = 0
		s.hashes--
		s.note(b.hash, holdsBlock, false)
		s.table.prune(entry)
	case entry.a == uint64(i)+1:
		entry.a = uint64(b.right) + 1
		fallthrough
	default:
		s.blocks[b.left].right = b.right
		s.blocks[b.right].left = b.left
	}
	b.content = blank
}
