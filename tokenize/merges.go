package tokenize

import (
	"math"
	"math/bits"
)

// mergeTable maps a pair of ids to the merge's rank and result: a hash table
// with linear probing, which is several times faster here than a Go map.
type mergeTable struct {
	shift uint8
	slots []mergeSlot
}

type mergeSlot struct {
	pair     uint64 // first<<32 | second
	rank, id uint32 // rank is rank+1; 0 marks an empty slot
}

func newMergeTable(n int) mergeTable {
	size := bits.Len(uint(n)) + 1 // at most half full
	return mergeTable{shift: uint8(64 - size), slots: make([]mergeSlot, 1<<size)}
}

func (m *mergeTable) slot(pair uint64) *mergeSlot {
	mask := uint64(len(m.slots) - 1)
	for i := pair * 0x9e3779b97f4a7c15 >> m.shift; ; i = (i + 1) & mask {
		if s := &m.slots[i]; s.rank == 0 || s.pair == pair {
			return s
		}
	}
}

// set adds a merge. Of equal pairs the last counts, as in Hugging Face's map.
func (m *mergeTable) set(a, b, rank, id uint32) {
	pair := uint64(a)<<32 | uint64(b)
	*m.slot(pair) = mergeSlot{pair, rank + 1, id}
}

// find returns the merge of two ids; rank is MaxUint32 and id too when there is
// none.
func (m *mergeTable) find(a, b uint32) (rank, id uint32) {
	s := m.slot(uint64(a)<<32 | uint64(b))
	if s.rank == 0 {
		return math.MaxUint32, math.MaxUint32
	}
	return s.rank - 1, s.id
}

// candidate is a merge of the symbols at a place and after it: its rank and the
// place, so that they sort as merges are made.
type candidate uint64

func newCandidate(rank uint32, place int32) candidate {
	return candidate(rank)<<32 | candidate(place)
}

func (c candidate) place() int32 { return int32(c & math.MaxUint32) }

// candidates is a heap of four children a node, the lowest first: on a
// megabyte, half the cache misses of two.
type candidates []candidate

const heapWidth = 4

func (h candidates) init() {
	for i := len(h) / heapWidth; i >= 0; i-- {
		h.down(i)
	}
}

func (h *candidates) push(c candidate) {
	*h = append(*h, c)
	s := *h
	i := len(s) - 1
	for i > 0 {
		parent := (i - 1) / heapWidth
		if s[parent] <= c {
			break
		}
		s[i] = s[parent]
		i = parent
	}
	s[i] = c
}

func (h candidates) down(i int) {
	if i >= len(h) {
		return
	}
	c := h[i]
	for {
		first := heapWidth*i + 1
		if first >= len(h) {
			break
		}
		child := first
		for j := first + 1; j < min(first+heapWidth, len(h)); j++ {
			if h[j] < h[child] {
				child = j
			}
		}
		if c <= h[child] {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = c
}

func (h *candidates) pop() candidate {
	s := *h
	top := s[0]
	last := len(s) - 1
	s[0] = s[last]
	*h = s[:last]
	h.down(0)
	return top
}
