// Package policytest checks what every policy must hold to, whatever it looks at: a test of a policy runs [Suite] on it.
// It is for tests only, safe to use from parallel tests, and takes well under a second for each policy.
package policytest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/inferrail/inferrail/policies"
)

// Suite runs all checks. The function makes a policy in its initial state; equal seeds must give equal policies. A policy
// without chance may ignore the seed.
func Suite(t *testing.T, newPolicy func(seed uint64) policies.Policy) {
	t.Helper()
	for _, check := range []struct {
		name string
		run  func(*testing.T, func(uint64) policies.Policy)
	}{
		{"chooses an offered candidate whatever the input", winnerInRange},
		{"decides the same until a decision is committed", decideIsPure},
		{"explaining in between changes no choice", explainPredicts},
		{"replays the same choices under the same seed", deterministic},
		{"overwrites what a reused decision holds", overwrites},
		{"always chooses an only candidate", onlyCandidate},
		{"favours no place in the order of candidates", noFavouredIndex},
		{"spreads requests that arrive together", spreadsBurst},
		{"allocates nothing", allocatesNothing},
	} {
		t.Run(check.name, func(t *testing.T) { check.run(t, newPolicy) })
	}
}

// terms are what Decision.DecidedBy may say.
var terms = map[string]bool{
	policies.ByQueue: true, policies.ByPrefill: true, policies.ByInFlight: true, policies.ByRotation: true,
	policies.ByChance: true, policies.ByOnlyCandidate: true, policies.ByGuard: true,
}

// Input makes a random input of n candidates: mostly sensible numbers with many ties, some extreme or senseless.
func Input(r *rand.Rand, n int) *policies.Input {
	in := &policies.Input{
		Now:          time.Duration(r.Int64N(int64(time.Hour))),
		PromptTokens: number(r, 10_000),
		Candidates:   make([]policies.Candidate, n),
	}
	for i, place := range r.Perm(n) {
		in.Candidates[i] = policies.Candidate{
			Name:         fmt.Sprintf("replica-%03d", place),
			InFlight:     number(r, 4),
			CachedTokens: number(r, 10_000),
			Queued:       time.Duration(number(r, 1000)) * time.Millisecond,
		}
	}
	return in
}

func number(r *rand.Rand, below int) int {
	switch r.IntN(20) {
	case 0:
		return math.MaxInt
	case 1:
		return math.MinInt
	case 2:
		return -1
	case 3, 4, 5:
		return 0
	}
	return r.IntN(below)
}

// inputs gives the check a fixed assortment of sizes.
func inputs(r *rand.Rand, check func(*policies.Input)) {
	for n := 1; n <= 256; n = n + 1 + n/8 {
		for range 20 {
			check(Input(r, n))
		}
	}
	check(Input(r, 256))
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

func winnerInRange(t *testing.T, newPolicy func(uint64) policies.Policy) {
	p, d := newPolicy(1), new(policies.Decision)
	inputs(newRand(), func(in *policies.Input) {
		p.Decide(in, d)
		if d.Winner < 0 || d.Winner >= len(in.Candidates) {
			t.Fatalf("winner %d of %d candidates, input %+v", d.Winner, len(in.Candidates), in)
		}
		if !terms[d.DecidedBy] {
			t.Fatalf("decided by %q, want one of the By constants", d.DecidedBy)
		}
		if n := len(d.Estimates); n != 0 && n != len(in.Candidates) {
			t.Fatalf("%d estimates for %d candidates", n, len(in.Candidates))
		}
		if len(d.Estimates) > 0 && d.Estimates[d.Winner].Guard != "" {
			t.Fatalf("chose a candidate that guard %q set aside, input %+v", d.Estimates[d.Winner].Guard, in)
		}
		p.Commit(in, d)
	})
}

func decideIsPure(t *testing.T, newPolicy func(uint64) policies.Policy) {
	p, first, again := newPolicy(1), new(policies.Decision), new(policies.Decision)
	inputs(newRand(), func(in *policies.Input) {
		before := append([]policies.Candidate(nil), in.Candidates...)
		p.Decide(in, first)
		for range 3 {
			p.Decide(in, again)
			if !equal(first, again) {
				t.Fatalf("decided %+v, then %+v, input %+v", first, again, in)
			}
		}
		if !reflect.DeepEqual(before, in.Candidates) {
			t.Fatalf("candidates changed from %+v to %+v", before, in.Candidates)
		}
		p.Commit(in, first)
	})
}

func explainPredicts(t *testing.T, newPolicy func(uint64) policies.Policy) {
	r := newRand()
	plain, explained := newPolicy(7), newPolicy(7)
	got, want, other := new(policies.Decision), new(policies.Decision), new(policies.Decision)
	inputs(newRand(), func(in *policies.Input) {
		plain.Decide(in, want)
		plain.Commit(in, want)
		for range r.IntN(3) {
			explained.Decide(Input(r, 1+r.IntN(16)), other)
		}
		explained.Decide(in, got)
		explained.Commit(in, got)
		if !equal(got, want) {
			t.Fatalf("decided %+v after explaining other requests, want %+v", got, want)
		}
	})
}

func deterministic(t *testing.T, newPolicy func(uint64) policies.Policy) {
	choices := func(seed uint64) (winners []int) {
		p, d := newPolicy(seed), new(policies.Decision)
		inputs(newRand(), func(in *policies.Input) {
			p.Decide(in, d)
			p.Commit(in, d)
			winners = append(winners, d.Winner)
		})
		return winners
	}
	for _, seed := range []uint64{0, 1, math.MaxUint64} {
		if a, b := choices(seed), choices(seed); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: two runs chose differently", seed)
		}
	}
}

func overwrites(t *testing.T, newPolicy func(uint64) policies.Policy) {
	p, fresh := newPolicy(1), new(policies.Decision)
	inputs(newRand(), func(in *policies.Input) {
		used := &policies.Decision{Winner: -7, DecidedBy: "stale", Estimates: make([]policies.Estimate, 300)}
		for i := range used.Estimates {
			used.Estimates[i] = policies.Estimate{Queue: 1, Prefill: 2, TTFT: 3, Score: 4, Guard: "stale"}
		}
		p.Decide(in, used)
		p.Decide(in, fresh)
		if !equal(used, fresh) {
			t.Fatalf("decided %+v into a used decision, %+v into a fresh one", used, fresh)
		}
		p.Commit(in, fresh)
	})
}

func onlyCandidate(t *testing.T, newPolicy func(uint64) policies.Policy) {
	r := newRand()
	p, d := newPolicy(1), new(policies.Decision)
	for range 1000 {
		in := Input(r, 1)
		p.Decide(in, d)
		if d.Winner != 0 || d.DecidedBy != policies.ByOnlyCandidate {
			t.Fatalf("winner %d decided by %q, want 0 by %q", d.Winner, d.DecidedBy, policies.ByOnlyCandidate)
		}
		p.Commit(in, d)
	}
}

// noFavouredIndex offers equal replicas in a random order each time: whatever a policy goes by, no place may win much more
// often than another.
func noFavouredIndex(t *testing.T, newPolicy func(uint64) policies.Policy) {
	const places, rounds = 8, 8000
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 3))
		p, d := newPolicy(seed), new(policies.Decision)
		var wins [places]int
		for range rounds {
			in := &policies.Input{PromptTokens: 20, Candidates: make([]policies.Candidate, places)}
			for i, name := range r.Perm(places) {
				in.Candidates[i].Name = string(rune('a' + name))
			}
			p.Decide(in, d)
			p.Commit(in, d)
			wins[d.Winner]++
		}
		if x := ChiSquare(wins[:]); x > chiSquare7 {
			t.Errorf("seed %d: wins by place %v, chi-square %.1f over %.1f", seed, wins, x, chiSquare7)
		}
	}
}

// chiSquare7 is exceeded by one in 10,000 uniform samples with seven degrees of freedom.
const chiSquare7 = 29.9

// ChiSquare is Pearson's statistic of counts that are expected to be equal.
func ChiSquare(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	want, sum := float64(total)/float64(len(counts)), 0.0
	for _, n := range counts {
		sum += (float64(n) - want) * (float64(n) - want) / want
	}
	return sum
}

// spreadsBurst sends 64 requests that all find the same prefix everywhere, counting each as a router does before it
// decides on the next.
func spreadsBurst(t *testing.T, newPolicy func(uint64) policies.Policy) {
	for seed := range uint64(20) {
		p, d := newPolicy(seed), new(policies.Decision)
		in := &policies.Input{PromptTokens: 4000, Candidates: make([]policies.Candidate, 8)}
		for i := range in.Candidates {
			in.Candidates[i] = policies.Candidate{Name: string(rune('a' + i)), CachedTokens: 3968}
		}
		for range 64 {
			p.Decide(in, d)
			p.Commit(in, d)
			in.Candidates[d.Winner].InFlight++
			in.Candidates[d.Winner].Queued += 10 * time.Millisecond
		}
		for i := range in.Candidates {
			if n := in.Candidates[i].InFlight; n > 9 {
				t.Errorf("seed %d: 64 requests over 8 equal replicas gave one of them %d, want at most 9", seed, n)
			}
		}
	}
}

func allocatesNothing(t *testing.T, newPolicy func(uint64) policies.Policy) {
	r := newRand()
	p, d := newPolicy(1), new(policies.Decision)
	mixed := make([]*policies.Input, 0, 64)
	inputs(r, func(in *policies.Input) {
		p.Decide(in, d) // grows d to the largest
		mixed = append(mixed, in)
	})
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		in := mixed[i%len(mixed)]
		i++
		p.Decide(in, d)
		p.Commit(in, d)
	}); n != 0 {
		t.Errorf("%v allocations per decision, want none", n)
	}
}

func equal(a, b *policies.Decision) bool {
	if a.Winner != b.Winner || a.DecidedBy != b.DecidedBy || len(a.Estimates) != len(b.Estimates) {
		return false
	}
	for i := range a.Estimates {
		if a.Estimates[i] != b.Estimates[i] {
			return false
		}
	}
	return true
}
