package policies_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/inferrail/inferrail/policies"
	"github.com/inferrail/inferrail/policies/policytest"
)

const ms = time.Millisecond

func newCostModel(t testing.TB, seed uint64) *policies.CostModel {
	t.Helper()
	p, err := policies.NewCostModel(policies.DefaultCostModelConfig(), seed)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCostModelConforms(t *testing.T) {
	policytest.Suite(t, func(seed uint64) policies.Policy { return newCostModel(t, seed) })
}

func TestCostModelConformsWithoutSlackOrCost(t *testing.T) {
	policytest.Suite(t, func(seed uint64) policies.Policy {
		p, err := policies.NewCostModel(policies.CostModelConfig{}, seed)
		if err != nil {
			t.Fatal(err)
		}
		return p
	})
}

func TestPrefill(t *testing.T) {
	for _, tc := range []struct {
		u, c int
		want time.Duration
	}{
		{0, 0, 5 * ms},
		{1, 0, 5*ms + 100*time.Microsecond + 2},       // half a pair: 1.65 ns
		{33, 592, 8366266},                            // 5 ms + 3.3 ms + 33 * (592 + 16.5) * 3.3 ns
		{625, 0, 68144531},                            // 5 ms + 62.5 ms + 625 * 312.5 * 3.3 ns
		{8000, 0, 5*ms + 800*ms + 105_600_000},        // 8000 * 4000 * 3.3 ns
		{4000, 4000, 5*ms + 400*ms + 79_200_000},      // 4000 * 6000 * 3.3 ns
		{-5, -5, 5 * ms},                              // no such counts
		{math.MaxInt, math.MaxInt, math.MaxInt64},     // saturates
		{math.MaxInt32, math.MaxInt32, math.MaxInt64}, // 724 years
	} {
		if got := newCostModel(t, 1).Prefill(tc.u, tc.c); got != tc.want {
			t.Errorf("Prefill(%d, %d) = %d ns, want %d ns", tc.u, tc.c, got, tc.want)
		}
	}
}

// Computing a prompt in two parts, the second on top of the first as cached, costs the same but for the fixed part.
func TestPrefillIsAdditive(t *testing.T) {
	c := policies.DefaultCostModelConfig()
	fixed := c.Prefill(0, 0)
	rapid.Check(t, func(t *rapid.T) {
		cached := rapid.IntRange(0, 100_000).Draw(t, "cached")
		first := rapid.IntRange(0, 50_000).Draw(t, "first")
		second := rapid.IntRange(0, 50_000).Draw(t, "second")
		parts := c.Prefill(first, cached) + c.Prefill(second, cached+first) - fixed
		if whole := c.Prefill(first+second, cached); (parts - whole).Abs() > 2 {
			t.Fatalf("parts take %v, the whole %v", parts, whole)
		}
	})
}

func TestCostModelConfigValidate(t *testing.T) {
	if err := policies.DefaultCostModelConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for _, bad := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		fields := map[string]policies.CostModelConfig{
			"prefill_token": {PrefillToken: bad},
			"prefill_pair":  {PrefillPair: bad},
			"prefill_fixed": {PrefillFixed: bad},
			"epsilon":       {Epsilon: bad},
		}
		for field, c := range fields {
			_, err := policies.NewCostModel(c, 1)
			if err == nil || !strings.Contains(err.Error(), field+":") {
				t.Errorf("%s of %v: error %v, want one that names the field", field, bad, err)
			}
		}
	}
	err := policies.CostModelConfig{PrefillToken: -1, Epsilon: -2}.Validate()
	if err == nil || !strings.Contains(err.Error(), "prefill_token") || !strings.Contains(err.Error(), "epsilon") {
		t.Errorf("two faults: error %v, want both named", err)
	}
}

func TestCostModelWorkedExamples(t *testing.T) {
	type c = policies.Candidate
	long := 10 * time.Second
	for _, tc := range []struct {
		name       string
		prompt     int
		candidates []c
		want       int
		by         string
	}{
		{"a cached replica behind a long queue loses to an idle cold one", 4000,
			[]c{{Name: "warm", CachedTokens: 3968, Queued: 2 * time.Second, InFlight: 1}, {Name: "cold"}},
			1, policies.ByQueue},
		{"and wins once the cold one is busier", 4000,
			[]c{{Name: "warm", CachedTokens: 3968, Queued: 2 * time.Second, InFlight: 1}, {Name: "cold", Queued: 3 * time.Second, InFlight: 1}},
			0, policies.ByQueue},
		{"a cached replica wins over an idle cold one while its queue is short", 4000,
			[]c{{Name: "warm", CachedTokens: 3968, Queued: 100 * ms}, {Name: "cold"}},
			0, policies.ByPrefill},
		{"the smaller miss wins", 625,
			[]c{{Name: "r0", CachedTokens: 592}, {Name: "r1"}},
			0, policies.ByPrefill},
		{"on a cache miss an idle replica wins over one that runs many", 4000,
			[]c{{Name: "runs 50", InFlight: 50}, {Name: "idle"}},
			1, policies.ByInFlight},
		{"a warm replica with over twice its share is set aside", 4000,
			[]c{{Name: "warm", InFlight: 5, CachedTokens: 3968}, {Name: "b", InFlight: 1}, {Name: "idle"}, {Name: "d", InFlight: 1}},
			2, policies.ByInFlight},
		{"loads 10, 2, 2 leave affinity to the lightly loaded", 4000,
			[]c{{Name: "a", InFlight: 10, CachedTokens: 3968}, {Name: "b", InFlight: 2, CachedTokens: 2000}, {Name: "c", InFlight: 2, CachedTokens: 3000}},
			2, policies.ByPrefill},
		{"for a short prompt load decides, not its prefix", 20,
			[]c{{Name: "warm", CachedTokens: 16, Queued: 10 * ms}, {Name: "idle"}},
			1, policies.ByQueue},
		{"equal estimates go to fewer in flight", 4000,
			[]c{{Name: "a", InFlight: 2}, {Name: "b", InFlight: 1}, {Name: "c", InFlight: 2}},
			1, policies.ByInFlight},
		{"a prompt of unknown length goes by the queue", 0,
			[]c{{Name: "a", Queued: 2 * ms}, {Name: "b", Queued: ms, InFlight: 1}},
			1, policies.ByQueue},
		{"and then by requests in flight, not by a cache", 0,
			[]c{{Name: "a", CachedTokens: 3968, InFlight: 1}, {Name: "b"}},
			1, policies.ByInFlight},
		{"estimates beyond all bounds still compare", math.MaxInt,
			[]c{{Name: "a", Queued: math.MaxInt64, InFlight: 1}, {Name: "b", Queued: math.MaxInt64}},
			1, policies.ByInFlight},
		{"more cached than prompt is all cached", 100,
			[]c{{Name: "a", CachedTokens: 50}, {Name: "b", CachedTokens: 1 << 40, Queued: ms}},
			1, policies.ByPrefill},
		{"an only candidate wins whatever it costs", 100, []c{{Name: "a", Queued: long, InFlight: 900}}, 0, policies.ByOnlyCandidate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := &policies.Input{PromptTokens: tc.prompt, Candidates: tc.candidates}
			d := follow(newCostModel(t, 1), in)
			if d.Winner != tc.want || d.DecidedBy != tc.by {
				t.Errorf("chose %s by %q, want %s by %q; estimates %+v", in.Candidates[d.Winner].Name, d.DecidedBy,
					in.Candidates[tc.want].Name, tc.by, d.Estimates)
			}
		})
	}
}

func TestCostModelEstimates(t *testing.T) {
	in := &policies.Input{PromptTokens: 625, Candidates: []policies.Candidate{
		{Name: "r0", CachedTokens: 592, Queued: 40 * ms, InFlight: 1},
		{Name: "r1", InFlight: 4},
	}}
	d := follow(newCostModel(t, 1), in)
	want := []policies.Estimate{
		{Queue: 40 * ms, Prefill: 8366266, TTFT: 48366266, Score: 0.048366266},
		{Prefill: 68144531, TTFT: 68144531, Score: 0.068144531},
	}
	if !slices.Equal(d.Estimates, want) {
		t.Errorf("estimates %+v, want %+v", d.Estimates, want)
	}
}

func TestBoundedLoadSetsAside(t *testing.T) {
	for _, tc := range []struct {
		name     string
		epsilon  float64
		inFlight []int
		aside    []bool
	}{
		{"an idle fleet: one request each", 1, []int{0, 0, 0, 0}, []bool{false, false, false, false}},
		{"one request: ceil(2*2/4) = 1", 1, []int{1, 0, 0, 0}, []bool{true, false, false, false}},
		{"seven requests: ceil(2*8/4) = 4", 1, []int{4, 3, 0, 0}, []bool{true, false, false, false}},
		{"an equal share: ceil(8/4) = 2", 0, []int{2, 2, 2, 1}, []bool{true, true, true, false}},
		{"a tenth above: ceil(1.1*12/4) = 4", 0.1, []int{4, 3, 3, 1}, []bool{true, false, false, false}},
		{"negative counts are none", 1, []int{1, -100, -100, -100}, []bool{true, false, false, false}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := policies.DefaultCostModelConfig()
			c.Epsilon = tc.epsilon
			p, err := policies.NewCostModel(c, 1)
			if err != nil {
				t.Fatal(err)
			}
			in := &policies.Input{PromptTokens: 100}
			for i, n := range tc.inFlight {
				in.Candidates = append(in.Candidates, policies.Candidate{Name: string(rune('a' + i)), InFlight: n})
			}
			d := follow(p, in)
			for i, e := range d.Estimates {
				if aside := e.Guard == policies.GuardBoundedLoad; aside != tc.aside[i] {
					t.Errorf("candidate %d with %d in flight: set aside %v, want %v", i, tc.inFlight[i], aside, tc.aside[i])
				}
			}
		})
	}
}

func TestCostModelSaysWhenAGuardLeftNoOther(t *testing.T) {
	c := policies.DefaultCostModelConfig()
	c.Epsilon = 0
	p, err := policies.NewCostModel(c, 1)
	if err != nil {
		t.Fatal(err)
	}
	in := &policies.Input{PromptTokens: 4000, Candidates: []policies.Candidate{
		{Name: "warm", InFlight: 1, CachedTokens: 3968}, {Name: "b", InFlight: 1}, {Name: "idle", Queued: ms},
	}}
	if d := follow(p, in); d.Winner != 2 || d.DecidedBy != policies.ByGuard {
		t.Errorf("chose %d by %q, want 2 by %q", d.Winner, d.DecidedBy, policies.ByGuard)
	}
}

// The least loaded candidate is within the bound whatever the counts, down to epsilon 0 and up to counts that are absurd.
func TestBoundedLoadAlwaysLeavesTheLeastLoaded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := policies.DefaultCostModelConfig()
		c.Epsilon = rapid.OneOf(rapid.Just(0.0), rapid.Float64Range(0, 1e-9), rapid.Float64Range(0, 3), rapid.Just(math.MaxFloat64)).Draw(t, "epsilon")
		p, err := policies.NewCostModel(c, 1)
		if err != nil {
			t.Fatal(err)
		}
		count := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 1000), rapid.IntRange(1<<30-2, 1<<30+2), rapid.Int())
		counts := rapid.SliceOfN(count, 1, 256).Draw(t, "in flight")
		in := &policies.Input{PromptTokens: 100}
		for _, n := range counts {
			in.Candidates = append(in.Candidates, policies.Candidate{InFlight: n})
		}
		d := new(policies.Decision)
		p.Decide(in, d)
		least := slices.Index(counts, slices.Min(counts))
		if d.Estimates[least].Guard != "" {
			t.Fatalf("candidate %d is the least loaded of %v and was set aside", least, counts)
		}
	})
}

// The winner against the definition, computed the plain way.
func TestCostModelChoosesTheLowestAllowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		config := policies.DefaultCostModelConfig()
		p, _ := policies.NewCostModel(config, rapid.Uint64().Draw(t, "seed"))
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "input"), 1))
		in := policytest.Input(r, rapid.IntRange(1, 40).Draw(t, "n"))
		d := new(policies.Decision)
		p.Decide(in, d)
		for i, e := range d.Estimates {
			if e.Guard != "" || i == d.Winner {
				continue
			}
			won := d.Estimates[d.Winner]
			if e.TTFT < won.TTFT || e.TTFT == won.TTFT && max(0, in.Candidates[i].InFlight) < max(0, in.Candidates[d.Winner].InFlight) {
				t.Fatalf("chose %+v (%+v) over %+v (%+v)", won, in.Candidates[d.Winner], e, in.Candidates[i])
			}
			if e.TTFT < e.Queue || e.TTFT < e.Prefill || e.Queue < 0 || e.Prefill < 0 {
				t.Fatalf("estimate %+v does not add up", e)
			}
		}
	})
}

func TestCostModelDrawsUniformlyAmongEquals(t *testing.T) {
	for seed := range uint64(10) {
		p, wins := newCostModel(t, seed), make([]int, 5)
		in := named("abcdefg")
		in.PromptTokens = 1000
		in.Candidates[2].Queued = ms
		in.Candidates[5].InFlight = 1
		for range 5000 {
			d := follow(p, in)
			if d.Winner == 2 || d.Winner == 5 || d.DecidedBy != policies.ByChance {
				t.Fatalf("seed %d: chose %d by %q, want an equal one by chance", seed, d.Winner, d.DecidedBy)
			}
			wins[[]int{0, 1, -1, 2, 3, -1, 4}[d.Winner]]++
		}
		if x := policytest.ChiSquare(wins); x > 23.5 { // one in 10,000 with four degrees of freedom
			t.Errorf("seed %d: wins %v, chi-square %.1f", seed, wins, x)
		}
	}
}
