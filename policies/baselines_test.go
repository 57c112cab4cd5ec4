package policies_test

import (
	"strings"
	"testing"

	"github.com/inferrail/inferrail/policies"
	"github.com/inferrail/inferrail/policies/policytest"
)

func TestRoundRobinConforms(t *testing.T) {
	policytest.Suite(t, func(uint64) policies.Policy { return policies.NewRoundRobin() })
}

func TestLeastRequestConforms(t *testing.T) {
	policytest.Suite(t, func(seed uint64) policies.Policy { return policies.NewLeastRequest(seed) })
}

// follow lets p decide and commits to it.
func follow(p policies.Policy, in *policies.Input) *policies.Decision {
	d := new(policies.Decision)
	p.Decide(in, d)
	p.Commit(in, d)
	return d
}

// named makes an input of candidates with one-letter names.
func named(names string) *policies.Input {
	in := new(policies.Input)
	for _, name := range names {
		in.Candidates = append(in.Candidates, policies.Candidate{Name: string(name)})
	}
	return in
}

func TestRoundRobinKeepsTheTurnAsReplicasComeAndGo(t *testing.T) {
	for _, tc := range []struct{ name, offered, want string }{
		{"takes turns", "abc abc abc abc abc", "abcab"},
		{"goes by name, not by order", "cab bca abc", "abc"},
		{"skips a replica that is full without repeating another", "abcd abcd abd abcd abcd", "abdab"},
		{"gives a replica that joins its turn", "abd abd abcd abcd", "abcd"},
		{"goes on after the last winner left", "abcd abcd acd acd", "abcd"},
		{"starts again when the last in order left", "abc abc abc ab", "abca"},
		{"repeats an only candidate", "a a a", "aaa"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, got := policies.NewRoundRobin(), ""
			for _, names := range strings.Fields(tc.offered) {
				in := named(names)
				got += in.Candidates[follow(p, in).Winner].Name
			}
			if got != tc.want {
				t.Errorf("offered %s, chose %s, want %s", tc.offered, got, tc.want)
			}
		})
	}
}

// A replica that is full at every other request must not shift the turns of the others.
func TestRoundRobinSharesEvenlyUnderAChangingSet(t *testing.T) {
	p, wins := policies.NewRoundRobin(), map[string]int{}
	for i := range 3000 {
		in := named("abcd")
		if i%2 == 0 {
			in = named("abc")
		}
		wins[in.Candidates[follow(p, in).Winner].Name]++
	}
	for _, name := range []string{"a", "b", "c"} {
		if wins[name] < 700 || wins[name] > 1100 {
			t.Errorf("%s won %d of 3000, want about its share; all: %v", name, wins[name], wins)
		}
	}
}

func TestLeastRequestGoesToTheFewestInFlight(t *testing.T) {
	in := named("abc")
	in.Candidates[0].InFlight, in.Candidates[1].InFlight, in.Candidates[2].InFlight = 3, 1, 2
	d := follow(policies.NewLeastRequest(1), in)
	if d.Winner != 1 || d.DecidedBy != policies.ByInFlight {
		t.Errorf("chose %d by %q, want 1 by %q", d.Winner, d.DecidedBy, policies.ByInFlight)
	}
}

func TestLeastRequestDrawsOnlyAmongTheFewest(t *testing.T) {
	in := named("abcd")
	in.Candidates[0].InFlight, in.Candidates[2].InFlight = 5, 1
	p, wins := policies.NewLeastRequest(1), make([]int, 4)
	for range 1600 {
		d := follow(p, in)
		if d.DecidedBy != policies.ByChance {
			t.Fatalf("decided by %q, want %q", d.DecidedBy, policies.ByChance)
		}
		wins[d.Winner]++
	}
	if wins[0] != 0 || wins[2] != 0 || wins[1] != 800 || wins[3] != 800 {
		t.Errorf("wins %v, want half each for the two with none in flight", wins)
	}
}
