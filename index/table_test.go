package index

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTableAgreesWithMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tab, naive := newTable(2), map[Hash][2]uint64{}
		hashes := rapid.SliceOfN(rapid.Uint64Range(0, 60), 0, 300).Draw(t, "hashes")
		for n, v := range hashes {
			h := Hash{v, v * v}
			if _, ok := naive[h]; ok && n%3 > 0 {
				e := tab.find(h)
				e.a, e.b = 0, 0
				tab.prune(e)
				delete(naive, h)
			} else {
				e := tab.ensure(h)
				e.a, e.b = uint64(n)+1, uint64(n)%2
				tab.prune(e)
				naive[h] = [2]uint64{e.a, e.b}
			}
			if err := tab.check(); err != nil {
				t.Fatal(err)
			}
		}
		if tab.entries() != len(naive) {
			t.Fatalf("%d entries, want %d", tab.entries(), len(naive))
		}
		for v := range uint64(62) {
			h := Hash{v, v * v}
			a, b := tab.get(h)
			if naive[h] != [2]uint64{a, b} {
				t.Fatalf("%v: %d %d, want %v", h, a, b, naive[h])
			}
		}
	})
}

func TestEmptiedTableHasNoSlots(t *testing.T) {
	t.Parallel()
	tab := newTable(4)
	empty := tab.bytes()
	for i := range uint64(10000) {
		tab.ensure(Hash{i, i}).a = 1
	}
	full := tab.bytes()
	if full > empty+10000*slotBytes*8/3 {
		t.Errorf("%d bytes for 10,000 entries", full)
	}
	for i := range uint64(10000) {
		e := tab.find(Hash{i, i})
		e.a = 0
		tab.prune(e)
	}
	if got := tab.bytes(); got != empty {
		t.Errorf("%d bytes when empty, %d at first", got, empty)
	}
}
