package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// step is one random operation on a small fleet.
type step struct {
	op      byte
	replica byte
	which   byte // placement or prompt
	amount  byte // outputs, capacity
}

const (
	opRecord = iota
	opFinish
	opFinishWith
	opTakeBack
	opTakeBackLast
	opSetCapacity
	opReset
	opReplace
	operations
)

// playBlockSize and playReplicas make a fleet in which everything that can happen happens soon.
const (
	playBlockSize = 3
	playReplicas  = 3
)

// played is a fleet of replicas with their models.
type played struct {
	x        *Index
	replicas []*Replica
	models   []*model
	live     []playedPlacement
	prompts  []*Prompt
}

type playedPlacement struct {
	replica int
	real    *Placement
	prompt  *Prompt
	model   *modelPlacement // nil once the replica was reset or replaced
}

// playPrompts are prompts that share prefixes, continue each other and end at and around block boundaries.
func playPrompts() []*Prompt {
	var all []*Prompt
	for _, salt := range []string{"", "s"} {
		root := Root("m", "", salt, playBlockSize)
		for branch := range 3 {
			for n := 1; n <= 19; n++ {
				tokens := make([]uint32, n)
				for i := range tokens {
					tokens[i] = playToken(i, branch)
				}
				all = append(all, NewPrompt(tokens, root, playBlockSize))
			}
		}
	}
	return all
}

func newPlayed() *played {
	f := &played{x: New(Config{MaxCapacity: 64}), prompts: playPrompts()}
	for i := range playReplicas {
		f.replicas = append(f.replicas, f.x.AddReplica(fmt.Sprint(i), playBlockSize, 4+6*i))
		f.models = append(f.models, newModel(playBlockSize, 4+6*i))
	}
	return f
}

func (f *played) do(st step) {
	i := int(st.replica) % playReplicas
	switch st.op % operations {
	case opRecord:
		p := f.prompts[int(st.which)%len(f.prompts)]
		f.live = append(f.live, playedPlacement{i, f.replicas[i].Record(p), p, f.models[i].record(p)})
	case opFinish:
		f.settle(int(st.which), func(pl playedPlacement) {
			pl.real.Finish(int(st.amount) % 16)
			if pl.model != nil {
				f.models[pl.replica].finish(pl.model, int(st.amount)%16, nil)
			}
		})
	case opFinishWith:
		f.settle(int(st.which), func(pl playedPlacement) {
			outputs, generated := int(st.amount)%16, f.answer(pl, int(st.amount)>>4)
			generated = generated[:min(len(generated), max(outputs-int(st.replica)%3, 0))]
			pl.real.FinishWith(outputs, generated)
			if pl.model != nil {
				f.models[pl.replica].finish(pl.model, outputs, generated)
			}
		})
	case opTakeBack, opTakeBackLast:
		which := int(st.which)
		if st.op%operations == opTakeBackLast {
			which = len(f.live) - 1
		}
		f.settle(which, func(pl playedPlacement) {
			pl.real.TakeBack()
			if pl.model != nil {
				f.models[pl.replica].takeBack(pl.model)
			}
		})
	case opSetCapacity:
		f.replicas[i].SetCapacity(1 + int(st.amount)%24)
		f.models[i].setCapacity(1 + int(st.amount)%24)
	case opReset:
		f.replicas[i].Reset()
		f.forget(i, f.models[i].capacity)
	case opReplace:
		f.x.RemoveReplica(f.replicas[i])
		capacity := 1 + int(st.amount)%24
		f.replicas[i] = f.x.AddReplica(fmt.Sprint(i), playBlockSize, capacity)
		f.forget(i, capacity)
	}
}

// answer returns 16 tokens that one of the branches of playPrompts goes on with after the placement's prompt.
func (f *played) answer(pl playedPlacement, branch int) []uint32 {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = playToken(len(pl.prompt.Tokens)+i, branch%3)
	}
	return tokens
}

// playToken returns token i of a branch.
func playToken(i, branch int) uint32 {
	if i >= 5*branch {
		return uint32(i + 100*branch)
	}
	return uint32(i)
}

// settle ends one live placement, twice, as the second time must do nothing.
func (f *played) settle(which int, end func(playedPlacement)) {
	if len(f.live) == 0 {
		return
	}
	which %= len(f.live)
	pl := f.live[which]
	f.live = slices.Delete(f.live, which, which+1)
	end(pl)
	pl.real.Finish(7)
	pl.real.TakeBack()
}

func (f *played) forget(i, capacity int) {
	f.models[i] = newModel(playBlockSize, capacity)
	for n := range f.live {
		if f.live[n].replica == i {
			f.live[n].model = nil
		}
	}
}

// check compares everything that can be seen with the models.
func (f *played) check(t failer) {
	t.Helper()
	for i, r := range f.replicas {
		checkReplica(t, r)
		m, s := f.models[i], r.shadow
		if got, want := s.outline(), m.outline(); got != want {
			t.Fatalf("replica %d:\n got %s\nwant %s", i, got, want)
		}
		if st := r.Stats(); st.Live != m.live || st.Capacity != m.capacity || len(f.live) == 0 && st.Blocks > st.Capacity {
			t.Fatalf("replica %d: stats %+v, want live %d, capacity %d", i, st, m.live, m.capacity)
		}
	}
	var got []int
	for _, p := range f.prompts {
		got = f.x.CachedTokens(p, f.replicas, got)
		for i, m := range f.models {
			if want := m.depth(p) * playBlockSize; got[i] != want {
				t.Fatalf("prompt %v on replica %d: %d cached tokens, want %d", p.Tokens, i, got[i], want)
			}
		}
	}
	entries := map[Hash]bool{}
	for _, m := range f.models {
		for _, b := range m.blocks {
			if b.content == known {
				entries[b.hash] = true
			}
		}
		for key := range m.records {
			entries[key] = true
		}
	}
	if st := f.x.Stats(); st.Entries != len(entries) || st.Replicas != playReplicas {
		t.Fatalf("stats %+v, want %d entries of %d replicas", st, len(entries), playReplicas)
	}
}

// outline tells the number of blocks, those in use, and the contents of the free queue in order.
func (s *shadow) outline() string {
	var queue []string
	for i := s.head; i != none; i = s.blocks[i].next {
		queue = append(queue, nameOf(s.blocks[i].content, s.blocks[i].hash))
	}
	return fmt.Sprint(s.existing, s.existing-s.queued, queue)
}

func (m *model) outline() string {
	var queue []string
	for _, id := range m.queue() {
		queue = append(queue, nameOf(m.blocks[id].content, m.blocks[id].hash))
	}
	return fmt.Sprint(len(m.blocks), len(m.blocks)-len(queue), queue)
}

func nameOf(c content, h Hash) string {
	switch c {
	case known:
		return hexOf(h)[:6]
	case generated:
		return "gen"
	}
	return "-"
}

func TestIndexAgreesWithModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := newPlayed()
		steps := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
			op := rapid.SampledFrom([]byte{
				opRecord, opRecord, opRecord, opRecord, opFinish, opFinish, opFinishWith, opTakeBack, opTakeBackLast, opSetCapacity, opReset, opReplace,
			}).Draw(t, "op")
			return step{op, rapid.Byte().Draw(t, "replica"), rapid.Byte().Draw(t, "which"), rapid.Byte().Draw(t, "amount")}
		}), 1, 60).Draw(t, "steps")
		for _, st := range steps {
			f.do(st)
			f.check(t)
		}
	})
}

// TestIndexAgreesWithModelOverLongSequences reaches states that short sequences do not.
func TestIndexAgreesWithModelOverLongSequences(t *testing.T) {
	t.Parallel()
	ops := []byte{opRecord, opRecord, opRecord, opRecord, opFinish, opFinishWith, opTakeBack, opTakeBackLast}
	seeds := uint64(12)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		rnd := rand.New(rand.NewPCG(seed, 0))
		f := newPlayed()
		for n := range 500 {
			st := step{ops[rnd.IntN(len(ops))], byte(rnd.Uint32()), byte(rnd.Uint32()), byte(rnd.Uint32())}
			switch {
			case len(f.live) > 8:
				st.op = opFinish
			case rnd.IntN(60) == 0:
				st.op = opSetCapacity + byte(rnd.IntN(3))
			}
			f.do(st)
			func() {
				defer func() {
					if t.Failed() {
						t.Logf("seed %d, step %d: %+v", seed, n, st)
					}
				}()
				f.check(t)
			}()
		}
	}
}

// FuzzSequences plays the input, four bytes a step.
func FuzzSequences(f *testing.F) {
	f.Add([]byte{0, 0, 18, 0, 1, 0, 0, 9, 0, 0, 19, 0, 2, 0, 0, 0})
	f.Add([]byte{0, 1, 8, 0, 0, 1, 30, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 1, 0, 2, 5, 1, 0, 0, 6, 1, 0, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		fleet := newPlayed()
		for ; len(data) >= 4; data = data[4:] {
			if len(fleet.live) > 50 {
				fleet.do(step{op: opFinish})
			}
			fleet.do(step{data[0], data[1], data[2], data[3]})
		}
		fleet.check(t)
	})
}
