package index

import (
	"math/bits"
	"math/rand/v2"
)

// table maps hashes to pairs of words. It is an open-addressing table with linear probing, cut into segments that
// grow and shrink on their own, so that no single operation moves more than one segment's entries, and memory
// returns when entries go (Go's maps never shrink). It holds no pointers. Not safe for concurrent use.
type table struct {
	segments []segment
	shift    uint // 64 - log2(len(segments))
	// seed keeps the places of entries unpredictable: whoever chooses tokens cannot choose hashes that crowd.
	seed [2]uint64
}

type segment struct {
	slots []slot // a power of two of them, or none
	used  int
}

// slot is an entry of a table, or free when both words are zero.
type slot struct {
	hash Hash
	a, b uint64
}

const (
	slotBytes    = 32
	segmentBytes = 32
	minSlots     = 8
)

// newTable returns an empty table of the given number of segments, a power of two.
func newTable(segments int) *table {
	return &table{
		segments: make([]segment, segments),
		shift:    64 - uint(bits.TrailingZeros(uint(segments))),
		seed:     [2]uint64{rand.Uint64(), rand.Uint64()},
	}
}

// place returns a hash's 64 bits of position: the top ones choose the segment, the low ones the slot.
func (t *table) place(h Hash) uint64 {
	hi, lo := bits.Mul64(h.Hi^t.seed[0], h.Lo^t.seed[1])
	return hi ^ lo
}

// find returns h's entry or nil. The pointer is good until the next ensure or prune.
func (t *table) find(h Hash) *slot {
	at := t.place(h)
	g := &t.segments[at>>t.shift]
	if g.used == 0 {
		return nil
	}
	mask := uint64(len(g.slots) - 1)
	for i := at & mask; ; i = (i + 1) & mask {
		s := &g.slots[i]
		if s.a|s.b == 0 {
			return nil
		}
		if s.hash == h {
			return s
		}
	}
}

// get returns h's words, zero when it has no entry.
func (t *table) get(h Hash) (a, b uint64) {
	if s := t.find(h); s != nil {
		return s.a, s.b
	}
	return 0, 0
}

// ensure returns h's entry and makes one if there is none. The caller gives a new entry a non-zero word before it
// uses the table again. The pointer is good until the next ensure or prune.
func (t *table) ensure(h Hash) *slot {
	if s := t.find(h); s != nil {
		return s
	}
	at := t.place(h)
	g := &t.segments[at>>t.shift]
	if 4*(g.used+1) > 3*len(g.slots) {
		t.resize(g, max(minSlots, 2*len(g.slots)))
	}
	g.used++
	s := g.free(at)
	s.hash = h
	return s
}

// prune removes h's entry if both of its words are zero: hole is that entry.
func (t *table) prune(hole *slot) {
	if hole.a|hole.b != 0 {
		return
	}
	h := hole.hash
	at := t.place(h)
	g := &t.segments[at>>t.shift]
	mask := uint64(len(g.slots) - 1)
	i := at & mask
	for &g.slots[i] != hole {
		i = (i + 1) & mask
	}
	// Backward shift: close the gap with the next entry whose own place is not behind the gap.
	for j := (i + 1) & mask; g.slots[j].a|g.slots[j].b != 0; j = (j + 1) & mask {
		home := t.place(g.slots[j].hash) & mask
		if (j-home)&mask >= (j-i)&mask {
			g.slots[i] = g.slots[j]
			i = j
		}
	}
	g.slots[i] = slot{}
	g.used--
	switch {
	case g.used == 0:
		*g = segment{}
	case len(g.slots) > minSlots && 8*g.used < len(g.slots):
		t.resize(g, len(g.slots)/2)
	}
}

// free returns the first free slot for an entry placed at at.
func (g *segment) free(at uint64) *slot {
	mask := uint64(len(g.slots) - 1)
	for i := at & mask; ; i = (i + 1) & mask {
		if s := &g.slots[i]; s.a|s.b == 0 {
			return s
		}
	}
}

func (t *table) resize(g *segment, size int) {
	old := g.slots
	g.slots = make([]slot, size)
	for i := range old {
		if old[i].a|old[i].b != 0 {
			*g.free(t.place(old[i].hash)) = old[i]
		}
	}
}

// entries returns the number of entries.
func (t *table) entries() int {
	n := 0
	for i := range t.segments {
		n += t.segments[i].used
	}
	return n
}

// bytes returns the table's memory.
func (t *table) bytes() int {
	n := segmentBytes * len(t.segments)
	for i := range t.segments {
		n += slotBytes * len(t.segments[i].slots)
	}
	return n
}
