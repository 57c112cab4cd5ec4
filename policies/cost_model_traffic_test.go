package policies_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/inferrail/inferrail/policies"
)

// Each request ends before the next begins, so that every replica is as good as any other.
func TestCostModelSpreadsPacedDistinctPrompts(t *testing.T) {
	for seed := range uint64(200) {
		p, wins := newCostModel(t, seed), make([]int, 4)
		in := named("abcd")
		in.PromptTokens = 1000
		for range 100 {
			wins[follow(p, in).Winner]++
		}
		if slices.Min(wins) < 15 || slices.Max(wins) > 35 {
			t.Errorf("seed %d: 100 distinct prompts over 4 replicas went %v, want 15 to 35 each", seed, wins)
		}
	}
}

// Twelve new prompts, each repeated: the first of each finds four idle replicas, the others the one that holds it.
func TestCostModelSpreadsPrefixGroups(t *testing.T) {
	for seed := range uint64(200) {
		p := newCostModel(t, seed)
		homes, groups := map[int]int{}, make([]int, 4)
		for request := range 12 * 5 {
			group := request % 12
			in := named("abcd")
			in.PromptTokens = 2000
			home, known := homes[group]
			if known {
				in.Candidates[home].CachedTokens = 1984
			}
			winner := follow(p, in).Winner
			switch {
			case !known:
				homes[group] = winner
				groups[winner]++
			case winner != home:
				t.Fatalf("seed %d: group %d went to %d, away from its cache on %d", seed, group, winner, home)
			}
		}
		if slices.Min(groups) < 1 || slices.Max(groups) > 5 {
			t.Errorf("seed %d: 12 groups over 4 idle replicas went %v, want about 3 each", seed, groups)
		}
	}
}

// One long prefix for everyone, requests overlapping: the first replica to hold it may not keep it all.
func TestCostModelSpreadsAHotPrefixBeforeAQueueForms(t *testing.T) {
	for seed := range uint64(20) {
		p := newCostModel(t, seed)
		in := named("abcd")
		in.PromptTokens = 4050
		for range 40 {
			winner := follow(p, in).Winner
			c := &in.Candidates[winner]
			c.Queued += p.Prefill(in.PromptTokens-c.CachedTokens, c.CachedTokens)
			c.InFlight++
			c.CachedTokens = 4000
		}
		for _, c := range in.Candidates {
			if c.InFlight < 5 || c.InFlight > 20 {
				t.Errorf("seed %d: replica %s got %d of 40 overlapping requests: %+v", seed, c.Name, c.InFlight, in.Candidates)
			}
		}
	}
}

// A short prompt's block may be cached somewhere; with equal queues the bound on load keeps it from drawing all traffic.
func TestCostModelBoundsAShortHotPrompt(t *testing.T) {
	p := newCostModel(t, 1)
	in := named("abcd")
	in.PromptTokens = 20
	in.Candidates[0].CachedTokens = 16
	for range 400 {
		in.Candidates[follow(p, in).Winner].InFlight++
	}
	if n := in.Candidates[0].InFlight; n > 200 {
		t.Errorf("the replica with the cached block holds %d of 400, over twice its share", n)
	}
}

func BenchmarkCostModel(b *testing.B) {
	for _, n := range []int{8, 64, 256} {
		b.Run(fmt.Sprintf("candidates=%d", n), func(b *testing.B) {
			p, d := newCostModel(b, 1), new(policies.Decision)
			in := &policies.Input{PromptTokens: 8000, Candidates: make([]policies.Candidate, n)}
			for i := range in.Candidates {
				in.Candidates[i] = policies.Candidate{Name: fmt.Sprint(i), InFlight: i % 5, CachedTokens: i * 37 % 8000, Queued: ms * time.Duration(i*13%50)}
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(in, d)
				p.Commit(in, d)
			}
		})
	}
}

func BenchmarkBaselines(b *testing.B) {
	for name, p := range map[string]policies.Policy{
		"round_robin":   policies.NewRoundRobin(),
		"least_request": policies.NewLeastRequest(1),
	} {
		b.Run(name+"/candidates=64", func(b *testing.B) {
			d := new(policies.Decision)
			in := &policies.Input{Candidates: make([]policies.Candidate, 64)}
			for i := range in.Candidates {
				in.Candidates[i] = policies.Candidate{Name: fmt.Sprintf("10.0.0.%d:8000", i), InFlight: i % 5}
			}
			b.ReportAllocs()
			for b.Loop() {
				p.Decide(in, d)
				p.Commit(in, d)
			}
		})
	}
}
