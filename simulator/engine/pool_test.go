package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/inferrail/inferrail/index"
)

// naivePool is vLLM's block pool as simply as possible: one list of free blocks and, per hash, the blocks in
// order of insertion.
type naivePool struct {
	free   []int32
	refs   map[int32]int
	hash   map[int32]index.Hash
	byHash map[index.Hash][]int32
}

func newNaivePool(total int) *naivePool {
	n := &naivePool{refs: map[int32]int{}, hash: map[int32]index.Hash{}, byHash: map[index.Hash][]int32{}}
	for id := 1; id < total; id++ {
		n.free = append(n.free, int32(id))
	}
	return n
}

func (n *naivePool) take() (id int32, evicted *index.Hash) {
	id, n.free = n.free[0], n.free[1:]
	n.refs[id] = 1
	if h, ok := n.hash[id]; ok {
		delete(n.hash, id)
		n.byHash[h] = slices.DeleteFunc(n.byHash[h], func(b int32) bool { return b == id })
		evicted = &h
	}
	return id, evicted
}

func (n *naivePool) lookup(h index.Hash) int32 {
	if ids := n.byHash[h]; len(ids) > 0 {
		return ids[0]
	}
	return noBlock
}

func (n *naivePool) touch(id int32) {
	n.free = slices.DeleteFunc(n.free, func(b int32) bool { return b == id })
	n.refs[id]++
}

func (n *naivePool) release(ids []int32) {
	var front, back []int32
	for _, id := range slices.Backward(ids) {
		n.refs[id]--
		if n.refs[id] > 0 {
			continue
		}
		if _, ok := n.hash[id]; ok {
			back = append(back, id)
		} else {
			front = append(front, id)
		}
	}
	n.free = slices.Concat(front, n.free, back)
}

func (n *naivePool) store(id int32, h index.Hash) {
	n.hash[id] = h
	n.byHash[h] = append(n.byHash[h], id)
}

func TestPoolAgainstNaiveModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(2, 14).Draw(t, "blocks")
		var evicted []index.Hash
		p := newPool(total, func(h index.Hash) { evicted = append(evicted, h) })
		n := newNaivePool(total)
		var holders [][]int32 // blocks held by the same request
		hashes := rapid.Custom(func(t *rapid.T) index.Hash {
			return index.Hash{Lo: uint64(rapid.IntRange(1, 3).Draw(t, "hash"))}
		})
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				if p.free == 0 {
					t.Skip("no free block")
				}
				var ids []int32
				for range rapid.IntRange(1, p.free).Draw(t, "n") {
					evicted = evicted[:0]
					id, want := n.take()
					if got := p.take(); got != id {
						t.Fatalf("took block %d, want %d", got, id)
					}
					if len(evicted) > 1 || (len(evicted) == 1) != (want != nil) || want != nil && evicted[0] != *want {
						t.Fatalf("evicted %v, want %v", evicted, want)
					}
					ids = append(ids, id)
				}
				holders = append(holders, ids)
			},
			"store": func(t *rapid.T) {
				for _, ids := range holders {
					for _, id := range ids {
						if !p.blocks[id].hashed && rapid.IntRange(0, 3).Draw(t, "full") > 0 {
							h := hashes.Draw(t, "hash")
							p.store(id, h)
							n.store(id, h)
						}
					}
				}
			},
			"hit": func(t *rapid.T) {
				h := hashes.Draw(t, "hash")
				id := p.lookup(h)
				if want := n.lookup(h); id != want {
					t.Fatalf("lookup gives block %d, want %d", id, want)
				}
				if id == noBlock {
					t.Skip("a miss")
				}
				p.touch(id)
				n.touch(id)
				holders = append(holders, []int32{id})
			},
			"release": func(t *rapid.T) {
				if len(holders) == 0 {
					t.Skip("nothing held")
				}
				i := rapid.IntRange(0, len(holders)-1).Draw(t, "holder")
				p.release(holders[i])
				n.release(holders[i])
				holders = slices.Delete(holders, i, i+1)
			},
			"reset": func(t *rapid.T) {
				if done := p.reset(); done != (len(holders) == 0) {
					t.Fatalf("reset gives %v with %d holders", done, len(holders))
				} else if done {
					clear(n.hash)
					clear(n.byHash)
				}
			},
			"": func(t *rapid.T) {
				refs := make([]int32, len(p.blocks))
				for id := range refs {
					refs[id] = int32(n.refs[int32(id)])
				}
				checkPool(t, p, refs)
				if p.free != len(n.free) || p.cached != len(n.hash) {
					t.Fatalf("%d free, %d cached, want %d, %d", p.free, p.cached, len(n.free), len(n.hash))
				}
			},
		})
	})
}
