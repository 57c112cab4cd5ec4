package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// promptOf returns a prompt of n tokens that no other seed shares a block with.
func promptOf(seed uint32, n, blockSize int) *Prompt {
	return extend(nil, seed, n, blockSize)
}

// extend returns p's tokens with n more, that depend on seed.
func extend(p *Prompt, seed uint32, n, blockSize int) *Prompt {
	var tokens []uint32
	if p != nil {
		tokens = slices.Clone(p.Tokens)
	}
	for i := range n {
		tokens = append(tokens, seed<<16|uint32(i))
	}
	return NewPrompt(tokens, Root("m", "", "", blockSize), blockSize)
}

func cached(x *Index, p *Prompt, replicas ...*Replica) []int {
	return x.CachedTokens(p, replicas, nil)
}

func want(t *testing.T, what string, got []int, want ...int) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: cached tokens %v, want %v", what, got, want)
	}
}

func TestOnlyReplicasThatHoldThePromptAnswer(t *testing.T) {
	t.Parallel()
	x := New(Config{})
	a, b := x.AddReplica("a", 16, 100), x.AddReplica("b", 16, 100)
	wide := x.AddReplica("wide", 32, 100)
	gone := x.AddReplica("gone", 16, 100)
	p := promptOf(1, 100, 16)
	for _, r := range []*Replica{a, wide, gone} {
		r.Record(p)
	}
	x.RemoveReplica(gone)
	want(t, "100 tokens", cached(x, p, a, b, nil, wide, gone, a), 96, 0, 0, 0, 0, 96)
	want(t, "a longer prompt", cached(x, extend(p, 2, 50, 16), a), 96)
	want(t, "a shorter prompt", cached(x, NewPrompt(p.Tokens[:96], p.Root, 16), a), 80)
	want(t, "no replicas", cached(x, p))
	if st := wide.Stats(); st.Held != 0 {
		t.Errorf("a prompt in blocks of 16 was recorded in blocks of 32: %+v", st)
	}
}

func TestUnusablePromptsAreOnNoReplica(t *testing.T) {
	t.Parallel()
	x := New(Config{})
	r := x.AddReplica("r", 4, 100)
	none := x.AddReplica("none", 0, 100)
	root := Root("m", "", "", 4)
	for _, p := range []*Prompt{
		nil, {}, NewPrompt(nil, root, 4), NewPrompt([]uint32{1}, root, 0), {Tokens: []uint32{1}, BlockSize: -1},
		{Tokens: make([]uint32, 9), BlockSize: 4, Hashes: make([]Hash, 1)}, {Tokens: make([]uint32, 9), BlockSize: 4, Hashes: make([]Hash, 3)},
	} {
		for _, pl := range []*Placement{r.Record(p), none.Record(p), nil} {
			pl.Finish(1)
			pl.TakeBack()
		}
		want(t, fmt.Sprintf("%+v", p), cached(x, p, r, none), 0, 0)
	}
	if st := x.Stats(); st.Entries != 0 {
		t.Errorf("%+v", st)
	}
}

func TestManyReplicasAnswerForThemselves(t *testing.T) {
	t.Parallel()
	const n = 1000
	x := New(Config{})
	p := promptOf(1, 16*40, 16)
	var replicas []*Replica
	var wants []int
	for i := range n {
		r := x.AddReplica(fmt.Sprint(i), 16, 100)
		depth := i % 39
		if depth > 0 {
			r.Record(NewPrompt(p.Tokens[:16*depth], p.Root, 16))
		}
		replicas, wants = append(replicas, r), append(wants, 16*depth)
	}
	rand.Shuffle(n, func(i, j int) {
		replicas[i], replicas[j] = replicas[j], replicas[i]
		wants[i], wants[j] = wants[j], wants[i]
	})
	want(t, "1000 replicas", cached(x, p, replicas...), wants...)
	want(t, "a few of them", cached(x, p, replicas[500:503]...), wants[500:503]...)
	for _, r := range replicas {
		x.RemoveReplica(r)
		x.RemoveReplica(r)
	}
	if st := x.Stats(); st.Entries != 0 || st.Replicas != 0 {
		t.Errorf("after all replicas were removed: %+v", st)
	}
}

func TestSlotsOfRemovedReplicasAreUsedAgain(t *testing.T) {
	t.Parallel()
	x := New(Config{})
	p := promptOf(1, 100, 16)
	kept := x.AddReplica("kept", 16, 100)
	kept.Record(p).Finish(1)
	for i := range 200 {
		r := x.AddReplica("passing", 16, 100)
		want(t, "a new replica", cached(x, p, r, kept), 0, 96)
		pl := r.Record(p)
		want(t, "a used replica", cached(x, p, r, kept), 96, 96)
		x.RemoveReplica(r)
		next := x.AddReplica("next", 16, 100)
		next.Record(p)
		want(t, "a removed replica whose slot is in use", cached(x, p, r, next), 0, 96)
		pl.Finish(100)
		r.Reset()
		r.SetCapacity(7)
		if st := r.Stats(); st.Blocks != 0 || st.Resets != 0 || st.Capacity != 100 || r.Record(p).replica != nil {
			t.Fatalf("round %d: removed replica has %+v", i, st)
		}
		x.RemoveReplica(next)
	}
	x.RemoveReplica(nil)
	New(Config{}).RemoveReplica(kept)
	if len(x.replicas) > 3 || len(x.pages) != 1 || x.Stats().Replicas != 1 {
		t.Errorf("%d slots, %d pages, %+v", len(x.replicas), len(x.pages), x.Stats())
	}
}

func TestCapacityHasDefaultsAndBounds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		config          Config
		ask, set, wants int
	}{
		{Config{}, 0, 0, DefaultCapacity},
		{Config{}, 10, -1, 10},
		{Config{}, 10, 20, 20},
		{Config{DefaultCapacity: 7}, -5, 0, 7},
		{Config{}, 1 << 40, 0, DefaultMaxCapacity},
		{Config{MaxCapacity: 9}, 0, 0, 9},
		{Config{MaxCapacity: 9}, 5, 1 << 40, 9},
	} {
		r := New(tc.config).AddReplica("r", 16, tc.ask)
		r.SetCapacity(tc.set)
		if got := r.Stats().Capacity; got != tc.wants {
			t.Errorf("%+v, added with %d, set to %d: capacity %d, want %d", tc.config, tc.ask, tc.set, got, tc.wants)
		}
		if r.Name() != "r" || r.BlockSize() != 16 {
			t.Errorf("%q has block size %d", r.Name(), r.BlockSize())
		}
	}
}

func TestResetForgetsEverything(t *testing.T) {
	t.Parallel()
	x := New(Config{})
	r := x.AddReplica("r", 16, 100)
	p := promptOf(1, 100, 16)
	r.Record(p).Finish(100)
	live := r.Record(p)
	r.Reset()
	want(t, "after a reset", cached(x, p, r), 0)
	r.Record(p).Finish(1)
	live.TakeBack()
	live.Finish(50)
	want(t, "after an old placement ended", cached(x, p, r), 96)
	if st := r.Stats(); st.Resets != 1 || st.Live != 0 || st.Blocks != 6 || st.Hashes != 6 || st.Held != 0 {
		t.Errorf("%+v", st)
	}
	checkReplica(t, r)
}

func TestEverythingAtOnce(t *testing.T) {
	t.Parallel()
	x := New(Config{})
	var mu sync.Mutex // guards replicas
	var replicas []*Replica
	for i := range 70 {
		replicas = append(replicas, x.AddReplica(fmt.Sprint(i), 4, 60))
	}
	base := promptOf(1, 40, 4)
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	var wg sync.WaitGroup
	for g := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(g, 1))
			var live []*Placement
			var dst []int
			for range rounds {
				mu.Lock()
				some := slices.Clone(replicas)
				mu.Unlock()
				r := some[rnd.IntN(len(some))]
				p := extend(base, rnd.Uint32N(50), int(rnd.Uint32N(30)), 4)
				dst = x.CachedTokens(p, some, dst)
				for i, n := range dst {
					if n < 0 || n >= len(p.Tokens) || n%4 != 0 {
						t.Errorf("%d cached of %d tokens on %q", n, len(p.Tokens), some[i].Name())
					}
				}
				live = append(live, r.Record(p))
				switch rnd.IntN(12) {
				case 0:
					r.Reset()
				case 1:
					r.SetCapacity(1 + rnd.IntN(100))
				case 2:
					x.RemoveReplica(r)
					mu.Lock()
					if i := slices.Index(replicas, r); i >= 0 {
						replicas[i] = x.AddReplica("new", 4, 60)
					}
					mu.Unlock()
				case 3:
					x.Stats()
				case 4, 5, 6:
					live[rnd.IntN(len(live))].TakeBack()
				default:
					live[rnd.IntN(len(live))].Finish(rnd.IntN(20))
				}
			}
			for _, pl := range live {
				pl.Finish(1)
			}
		})
	}
	wg.Wait()
	for _, r := range replicas {
		checkReplica(t, r)
		if st := r.Stats(); st.Live != 0 || st.Held != 0 || st.Blocks > st.Capacity {
			t.Errorf("%q: %+v", r.Name(), st)
		}
		x.RemoveReplica(r)
	}
	if st := x.Stats(); st.Entries != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLookupDoesNotAllocate(t *testing.T) {
	x := New(Config{})
	var replicas []*Replica
	p := promptOf(1, 1000, 16)
	for i := range 100 {
		r := x.AddReplica(fmt.Sprint(i), 16, 200)
		r.Record(NewPrompt(p.Tokens[:10*i+1], p.Root, 16)).Finish(100)
		replicas = append(replicas, r)
	}
	dst := make([]int, 0, len(replicas))
	if n := testing.AllocsPerRun(50, func() { dst = x.CachedTokens(p, replicas, dst) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
