package policies

import (
	"fmt"
	"math"
	"time"
)

// CostModel is the policy cost_model: the replica with the lowest estimated time to first token.
//
// Formula, for each candidate:
//
//	TTFT = W + P(u, c)
//	P(u, c) = a*u + b*u*(c + u/2) + d
//
// with W the prefill queued there, c the prompt's cached tokens, u the other ones, and a, b, d from [CostModelConfig].
// The lowest wins; candidates equal to the nanosecond go to fewer requests in flight, then to seeded chance. A prompt of
// unknown length has no P, so that W decides, then the requests in flight.
//
// Guard: a candidate is set aside (bounded_load) if with this request it would hold more than
// ceil((1 + epsilon) * (in_flight of all + 1) / n) requests, so that no prefix, however hot, melts the replica that holds it. The
// least loaded candidate is always within the bound: it holds at most floor(in_flight of all / n), one less than
// ceil((in_flight of all + 1) / n). After Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2018.
//
// Inputs: queued prefill, cached tokens, requests in flight, the prompt's length.
// Prefer it wherever prompts share prefixes and the engine's prefill has been calibrated to the right order of size.
type CostModel struct {
	config CostModelConfig
	chance chance
}

// NewCostModel returns the policy with its source of chance; equal seeds replay equal choices.
// The error is that of [CostModelConfig.Validate].
func NewCostModel(config CostModelConfig, seed uint64) (*CostModel, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("checking cost model: %w", err)
	}
	return &CostModel{config: config, chance: newChance(seed)}, nil
}

// Prefill is [CostModelConfig.Prefill] with the policy's configuration.
func (p *CostModel) Prefill(u, c int) time.Duration { return p.config.Prefill(u, c) }

// Decide implements [Policy].
func (p *CostModel) Decide(in *Input, d *Decision) {
	p.price(in, d)
	best, tied := -1, 0
	for i := range d.Estimates {
		if d.Estimates[i].Guard != "" {
			continue
		}
		if best < 0 {
			best, tied = i, 1
			continue
		}
		switch compare(in, d, i, best) {
		case -1:
			best, tied = i, 1
		case 0:
			tied++
		}
	}
	d.Winner = best
	if tied > 1 {
		d.Winner, d.DecidedBy = p.draw(in, d, best, tied), ByChance
		return
	}
	d.DecidedBy = decidedBy(in, d)
}

// Commit implements [Policy]: a draw that decided is used up.
func (p *CostModel) Commit(_ *Input, d *Decision) {
	if d.DecidedBy == ByChance {
		p.chance.advance()
	}
}

// price fills d.Estimates, guards included.
func (p *CostModel) price(in *Input, d *Decision) {
	n := len(in.Candidates)
	if cap(d.Estimates) < n {
		d.Estimates = make([]Estimate, n)
	}
	d.Estimates = d.Estimates[:n]
	allowed := p.bound(in.Candidates)
	for i := range in.Candidates {
		c := &in.Candidates[i]
		e := Estimate{Queue: max(c.Queued, 0)}
		if in.PromptTokens > 0 {
			cached := min(max(c.CachedTokens, 0), in.PromptTokens)
			e.Prefill = p.config.Prefill(in.PromptTokens-cached, cached)
		}
		e.TTFT = e.Queue + min(e.Prefill, math.MaxInt64-e.Queue)
		e.Score = e.TTFT.Seconds()
		if inFlight(c)+1 > allowed {
			e.Guard = GuardBoundedLoad
		}
		d.Estimates[i] = e
	}
}

// bound is the number of requests that a replica may hold, this one included.
// Rounding never takes it below the bound for epsilon 0, which some candidate always meets: float64 arithmetic is monotonic,
// and counts up to 2^30 keep the quotient's rounding far below the 1/n by which it can exceed a whole number.
func (p *CostModel) bound(candidates []Candidate) float64 {
	total := 0.0
	for i := range candidates {
		total += inFlight(&candidates[i])
	}
	return math.Ceil((1 + p.config.Epsilon) * (total + 1) / float64(len(candidates)))
}

// inFlight keeps counts in the range that bound's arithmetic is exact for.
func inFlight(c *Candidate) float64 { return float64(min(max(c.InFlight, 0), 1<<30)) }

// draw gives one of the tied candidates that are as good as best, the first of them.
func (p *CostModel) draw(in *Input, d *Decision, best, tied int) int {
	nth := p.chance.pick(tied)
	for i := best; i < len(d.Estimates); i++ {
		if d.Estimates[i].Guard != "" || compare(in, d, i, best) != 0 {
			continue
		}
		if nth == 0 {
			return i
		}
		nth--
	}
	return best
}

// compare says whether candidate i is better than j (-1), as good (0) or worse (+1), guards aside.
func compare(in *Input, d *Decision, i, j int) int {
	switch a, b := d.Estimates[i].TTFT, d.Estimates[j].TTFT; {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	switch a, b := inFlight(&in.Candidates[i]), inFlight(&in.Candidates[j]); {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// decidedBy names what put a winner without equals furthest ahead of the next best allowed candidate.
func decidedBy(in *Input, d *Decision) string {
	if len(d.Estimates) == 1 {
		return ByOnlyCandidate
	}
	second := -1
	for i := range d.Estimates {
		if i == d.Winner || d.Estimates[i].Guard != "" {
			continue
		}
		if second < 0 || compare(in, d, i, second) < 0 {
			second = i
		}
	}
	if second < 0 {
		return ByGuard
	}
	won, lost := &d.Estimates[d.Winner], &d.Estimates[second]
	switch {
	case won.TTFT == lost.TTFT:
		return ByInFlight
	case lost.Queue-won.Queue > lost.Prefill-won.Prefill:
		return ByQueue
	default:
		return ByPrefill
	}
}
