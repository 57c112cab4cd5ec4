package index

import (
	"runtime"
	"slices"
	"testing"
	"unsafe"
)

func heap() int {
	runtime.GC()
	runtime.GC()
	var st runtime.MemStats
	runtime.ReadMemStats(&st)
	return int(st.HeapAlloc)
}

func TestSizesThatTheBoundsCountOn(t *testing.T) {
	t.Parallel()
	if got := unsafe.Sizeof(block{}); got != 64 {
		t.Errorf("a block has %d bytes, not a cache line's 64", got)
	}
	if got := unsafe.Sizeof(slot{}); got != slotBytes {
		t.Errorf("a slot has %d bytes, not %d", got, slotBytes)
	}
	if got := unsafe.Sizeof(segment{}); got != segmentBytes {
		t.Errorf("a segment has %d bytes, not %d", got, segmentBytes)
	}
}

// TestHeapReturnsAfterChurn stores and removes a million unique suffixes of one kept prefix, by eviction, by taking
// back, and by growing and shrinking the pool.
func TestHeapReturnsAfterChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("a million blocks")
	}
	const capacity = 20000
	x := New(Config{})
	r := x.AddReplica("r", 16, capacity)
	prefix := promptOf(1, 16*64, 16)
	root, tokens := prefix.Root, slices.Concat(prefix.Tokens, make([]uint32, 32*16))
	suffix := uint32(0)
	churn := func(blocks int) {
		for ; blocks > 0; blocks -= 32 {
			suffix++
			tokens[len(prefix.Tokens)] = suffix
			p := NewPrompt(tokens, root, 16)
			if pl := r.Record(p); suffix%4 == 0 {
				pl.TakeBack()
			} else {
				pl.Finish(17)
			}
		}
	}
	churn(4 * capacity)
	base := heap()
	for range 4 {
		churn(125_000)
		r.SetCapacity(2000)
		r.SetCapacity(capacity)
		churn(125_000)
	}
	got := heap()
	if got > base+base/20 || got < base-base/20 {
		t.Errorf("heap %d bytes after a million blocks, %d before", got, base)
	}
	if n := cached(x, NewPrompt(tokens, root, 16), r)[0]; n < len(prefix.Tokens) {
		t.Errorf("%d tokens of the kept prefix of %d are left", n, len(prefix.Tokens))
	}
	checkReplica(t, r)
	runtime.KeepAlive(x)
}

// TestMemoryIsWithinBounds compares the heap with the documented bounds and with Stats' estimate.
func TestMemoryIsWithinBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the heap, which takes quiet and time")
	}
	const blocks, each = 100_000, 100
	before := heap()
	x := New(Config{})
	r := x.AddReplica("r", 16, blocks)
	if got := heap() - before; got > 64<<10 {
		t.Errorf("an unused replica of %d blocks takes %d bytes", blocks, got)
	}
	for i := range uint32(blocks / each) {
		r.Record(promptOf(i, each*16, 16)).Finish(1)
	}
	got, stats := heap()-before, x.Stats().Bytes
	t.Logf("%d bytes for each of %d blocks, %d estimated", got/blocks, blocks, stats/blocks)
	if got > blocks*BytesPerBlock {
		t.Errorf("%d blocks take %d bytes, more than %d each", blocks, got, BytesPerBlock)
	}
	if stats < got*9/10 || stats > got*11/10 {
		t.Errorf("Stats tells %d bytes, the heap has %d", stats, got)
	}
	before = heap()
	var live []*Placement
	for i := range uint32(blocks / each / 2) {
		live = append(live, r.Record(promptOf(1<<15|i, each*16, 16)))
	}
	got = heap() - before
	t.Logf("%d bytes for each block of a live placement", got/len(live)/each)
	if got > len(live)*each*BytesPerLiveBlock {
		t.Errorf("%d live placements of %d blocks take %d bytes, more than %d for each block", len(live), each, got, BytesPerLiveBlock)
	}
	runtime.KeepAlive(live)
	runtime.KeepAlive(x)
}
