package index

import (
	"math"
	"testing"
)

// oneReplica returns an index of one replica with blocks of 4 tokens.
func oneReplica(capacity int) (*Index, *Replica) {
	x := New(Config{})
	return x, x.AddReplica("r", 4, capacity)
}

func TestNextTurnIsCreditedWithTheAnswer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name            string
		prompt, outputs int
		cached          int // of prompt + outputs + 9 more tokens
	}{
		{"the newest token has no KV", 8, 4, 8},
		{"one token more", 8, 5, 12},
		{"partial last block of the prompt", 10, 3, 12},
		{"no full block in the prompt", 3, 20, 20},
		{"no full block at all", 1, 2, 0},
		{"cut off before the first token", 10, 0, 8},
		{"a long answer", 9, 100, 108},
	} {
		x, r := oneReplica(100)
		p := promptOf(1, tc.prompt, 4)
		r.Record(p).Finish(tc.outputs)
		next := extend(p, 2, max(tc.outputs, 1)+9, 4)
		want(t, tc.name, cached(x, next, r), tc.cached)
		r.Record(next).Finish(1)
		checkReplica(t, r)
		other := extend(extend(p, 2, max(tc.outputs, 1)-1, 4), 3, 9, 4)
		want(t, tc.name+", once what it was is known", cached(x, other, r), tc.cached)
		elsewhere := extend(p, 4, 200, 4)
		want(t, tc.name+", another continuation", cached(x, elsewhere, r), tc.prompt/4*4)
	}
}

func TestAnswerIsNotCreditedToAnotherPrompt(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(100)
	p := promptOf(1, 10, 4)
	r.Record(p).Finish(30)
	branch := extend(NewPrompt(p.Tokens[:9], p.Root, 4), 7, 40, 4)
	want(t, "another tail", cached(x, branch, r), 8)
	want(t, "a prompt that ends within the tail", cached(x, NewPrompt(p.Tokens[:9], p.Root, 4), r), 8)
	r.Record(branch).Finish(30)
	want(t, "the newest answer counts", cached(x, extend(branch, 8, 40, 4), r), 76)
	want(t, "and the older one still does under its own key", cached(x, extend(p, 8, 40, 4), r), 36)
}

func TestNewestAnswerReplacesTheOlder(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(100)
	p := promptOf(1, 10, 4)
	r.Record(p).Finish(31)
	r.Record(p).Finish(11)
	want(t, "two answers to one prompt", cached(x, extend(p, 8, 90, 4), r), 20)
	checkReplica(t, r)
}

func TestShortFollowUpLeavesTheRestOfTheAnswerForALongerOne(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(100)
	p := promptOf(1, 10, 4)
	r.Record(p).Finish(31) // ten full blocks
	short := extend(p, 2, 6, 4)
	want(t, "four blocks exactly", cached(x, short, r), 12)
	r.Record(short).Finish(1)
	checkReplica(t, r)
	want(t, "one that goes on from there", cached(x, extend(short, 3, 90, 4), r), 40)
}

func TestAnswerIsEvictedFromItsEnd(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(10)
	p := promptOf(1, 8, 4)
	r.Record(p).Finish(33) // all ten blocks
	next := extend(p, 2, 60, 4)
	want(t, "all of it", cached(x, next, r), 40)
	for left := 9; left >= 1; left-- {
		r.Record(promptOf(uint32(100+left), 3, 4)).TakeBack()
		r.Record(promptOf(uint32(100+left), 5, 4)).Finish(1)
		checkReplica(t, r)
		got := cached(x, next, r)[0] / 4
		if got > left {
			t.Errorf("%d blocks left, %d predicted", left, got)
		}
	}
	want(t, "none of it", cached(x, next, r), 0)
	if st := x.Stats(); st.Entries != r.Stats().Hashes {
		t.Errorf("records of evicted answers remain: %+v, %+v", st, r.Stats())
	}
}

func TestPinnedBlocksExceedTheCapacityOnlyWhilePinned(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(10)
	var live []*Placement
	for i := range uint32(5) {
		live = append(live, r.Record(promptOf(i, 20, 4)))
		want(t, "a prompt being served", cached(x, promptOf(i, 20, 4), r), 16)
	}
	if st := r.Stats(); st.Held != 25 || st.Live != 5 {
		t.Errorf("%+v", st)
	}
	live[0].TakeBack()
	want(t, "one that never was", cached(x, promptOf(0, 20, 4), r), 0)
	for _, pl := range live[1:] {
		pl.Finish(5)
		checkReplica(t, r)
	}
	if st := r.Stats(); st.Held != 0 || st.Blocks > 10 {
		t.Errorf("%+v", st)
	}
}

func TestWhatOthersHitStaysWhenItsBringerIsTakenBack(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(100)
	p := promptOf(1, 20, 4)
	longer := extend(p, 2, 8, 4)
	first := r.Record(p)
	second := r.Record(longer)
	first.TakeBack()
	want(t, "second is being served", cached(x, longer, r), 24)
	second.Finish(1)
	want(t, "second was served", cached(x, longer, r), 24)

	r.Reset()
	first = r.Record(p)
	second = r.Record(longer)
	first.TakeBack()
	second.TakeBack()
	want(t, "neither was", cached(x, longer, r), 0)
	if st := r.Stats(); st.Hashes != 0 || st.Blocks != 0 {
		t.Errorf("%+v", st)
	}
	checkReplica(t, r)
}

func TestFirstEndCounts(t *testing.T) {
	t.Parallel()
	x, r := oneReplica(100)
	p := promptOf(1, 21, 4)
	pl := r.Record(p)
	pl.Finish(1)
	pl.TakeBack()
	want(t, "finished first", cached(x, p, r), 20)
	q := promptOf(2, 21, 4)
	pl = r.Record(q)
	pl.TakeBack()
	pl.Finish(1)
	want(t, "taken back first", cached(x, q, r), 0)
}

func TestAbsurdOutputCountsAreBounded(t *testing.T) {
	t.Parallel()
	for _, outputs := range []int{math.MaxInt, math.MinInt, 1 << 31} {
		_, r := oneReplica(10)
		r.Record(promptOf(1, 5, 4)).Finish(outputs)
		if st := r.Stats(); st.Blocks > 10 {
			t.Errorf("%d outputs: %+v", outputs, st)
		}
		checkReplica(t, r)
	}
}

// TestSearchForAPlaceIsBounded takes back a hit whose old place is far from both ends and from where it stood.
func TestSearchForAPlaceIsBounded(t *testing.T) {
	t.Parallel()
	s := newShadow(1, 1000, func([]change) {})
	for i := range uint32(500) {
		var h holding
		s.record(NewPrompt([]uint32{i, 0}, Hash{}, 1), &h)
		s.finish(&h, 1, nil)
	}
	for _, budget := range []int{0, 3, 10000} {
		i := s.first(Next(Hash{}, []uint32{250}))
		before := s.blocks[i].stamp
		s.unlink(i)
		s.blocks[i].next = s.head
		steps := budget
		s.putBack(i, &steps)
		if err := s.check(); err != nil {
			t.Fatal(err)
		}
		if found := s.blocks[i].stamp == before; found != (budget == 10000) || steps < 0 {
			t.Errorf("%d steps allowed, %d left, place found: %v", budget, steps, found)
		}
		s.blocks[i].stamp = before
		s.unlink(i)
		steps = 10000
		s.putBack(i, &steps)
	}
}
