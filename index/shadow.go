package index

// shadow mirrors one engine's block pool. It is plain data: Replica locks it and passes its changes on to the shared
// map. Block numbers are positions in blocks; a number is used again after its block was dropped for good.
type shadow struct {
	blockSize int
	capacity  int // usable blocks of the engine
	blocks    []block
	spare     int32 // numbers of dropped blocks, linked by next
	existing  int   // blocks that exist; the engine's other blocks were never used
	// head and tail are the ends of the free queue, queued its length and blanks the number of blank blocks in it,
	// which have negative stamps; low and high are the lowest and the highest stamp given out.
	head, tail     int32
	queued, blanks int
	low, high      int64
	// table maps a block's hash to its first copy (word a) and to the first block of the continuation that follows
	// it (word b); both are block numbers plus 1.
	table  *table
	hashes int    // those of known blocks, each counted once
	stored uint64 // blocks made known so far
	// changes are those of the table that were not published yet, at most changesAtOnce of them.
	changes []change
	publish func([]change)
	// operations and evictions count what changed the pool. A placement that is taken back while a count is what it
	// left knows that nothing of that kind happened since, and sets it back to what it found. So the counts of live
	// placements nest, and no two of them can be mistaken for each other.
	operations, evictions uint64
	live                  int // placements that are neither finished nor taken back
}

// change is a change of whether a replica holds a hash's block, or has a continuation filed under it.
type change struct {
	hash Hash
	what changed
	now  bool
}

type changed uint8

const (
	holdsBlock changed = iota
	hasContinuation
)

// shadowSegments keeps the largest move of a shadow's table below a tenth of a millisecond at 100,000 blocks.
const shadowSegments = 16

// newShadow returns an empty shadow that passes what changes in its table to publish, which must not keep the slice.
func newShadow(blockSize, capacity int, publish func([]change)) *shadow {
	return &shadow{
		blockSize: blockSize,
		capacity:  capacity,
		spare:     none,
		head:      none,
		tail:      none,
		table:     newTable(shadowSegments),
		publish:   publish,
	}
}

// note keeps a change of the table to be published.
func (s *shadow) note(h Hash, what changed, now bool) {
	if s.changes == nil {
		s.changes = make([]change, 0, changesAtOnce)
	}
	s.changes = append(s.changes, change{h, what, now})
	if len(s.changes) == changesAtOnce {
		s.publishRest()
	}
}

// publishRest publishes what was not published yet.
func (s *shadow) publishRest() {
	if len(s.changes) > 0 {
		s.publish(s.changes)
		s.changes = s.changes[:0]
	}
}

// take returns a block for a new content, blank and held by one placement, and what it was before. It never fails:
// when every block is held by live placements, where the engine would let the request wait, the pool grows beyond
// its capacity until blocks are freed.
func (s *shadow) take() (i int32, was block) {
	fresh := s.existing < s.capacity
	if s.head != none && (!fresh || s.blocks[s.head].stamp < 0) {
		i = s.head
		was = s.blocks[i]
		s.unlink(i)
		s.evict(i)
	} else {
		i = s.make()
		was.content = absent
	}
	b := &s.blocks[i]
	b.refs, b.claims = 1, 1
	return i, was
}

// make returns a block that did not exist.
func (s *shadow) make() int32 {
	s.existing++
	if i := s.spare; i != none {
		s.spare = s.blocks[i].next
		s.blocks[i] = block{prev: none, next: none, left: none, right: none}
		return i
	}
	if len(s.blocks) == cap(s.blocks) {
		s.grow()
	}
	s.blocks = append(s.blocks, block{prev: none, next: none, left: none, right: none})
	return int32(len(s.blocks) - 1)
}

// grow makes room for more blocks: for twice as many, but not beyond the capacity unless that is reached.
func (s *shadow) grow() {
	n := len(s.blocks)
	room := max(64, 2*n)
	if n < s.capacity {
		room = min(room, s.capacity)
	} else {
		room = n + max(64, n/8)
	}
	blocks := make([]block, n, room)
	copy(blocks, s.blocks)
	s.blocks = blocks
}

// drop makes the free block i, which is not in the queue, one that does not exist.
func (s *shadow) drop(i int32) {
	s.blocks[i] = block{next: s.spare}
	s.spare = i
	s.existing--
}

// evict makes block i blank.
func (s *shadow) evict(i int32) {
	b := &s.blocks[i]
	switch b.content {
	case known:
		s.evictions++
		s.dropCopy(i)
	case generated:
		s.evictions++
		s.unfile(i)
		if b.left != none {
			s.blocks[b.left].right = none
		}
		if b.right != none {
			s.blocks[b.right].left = none
		}
	}
	b.content, b.left, b.right = blank, none, none
}

// shrink drops free blocks, the next to be taken first, while there are more than the engine has.
func (s *shadow) shrink() {
	for s.existing > s.capacity && s.head != none {
		i := s.head
		s.unlink(i)
		s.evict(i)
		s.drop(i)
	}
}

// setCapacity changes the number of blocks that the engine has.
func (s *shadow) setCapacity(blocks int) {
	s.operations++
	s.capacity = blocks
	s.shrink()
}

// first returns the block that serves hits of h, or none.
func (s *shadow) first(h Hash) int32 {
	a, _ := s.table.get(h)
	return int32(a) - 1
}

// bytes returns the shadow's memory.
func (s *shadow) bytes() int {
	return cap(s.blocks)*blockBytes + s.table.bytes() + cap(s.changes)*changeBytes
}
