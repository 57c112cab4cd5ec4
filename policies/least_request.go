package policies

// LeastRequest is the policy least_request: the replica with the fewest requests in flight.
//
// Rule: lowest in_flight; ties by seeded chance.
// Inputs: the candidates' requests in flight.
// Prefer it where prompts share nothing, or where the router cannot see them: it spreads load well and ignores caches.
type LeastRequest struct {
	chance chance
}

// NewLeastRequest returns the policy with its source of chance; equal seeds replay equal choices.
func NewLeastRequest(seed uint64) *LeastRequest { return &LeastRequest{chance: newChance(seed)} }

// Decide implements [Policy].
func (p *LeastRequest) Decide(in *Input, d *Decision) {
	d.Estimates = d.Estimates[:0]
	fewest, tied := in.Candidates[0].InFlight, 0
	for i := range in.Candidates {
		switch n := in.Candidates[i].InFlight; {
		case n < fewest:
			fewest, tied = n, 1
		case n == fewest:
			tied++
		}
	}
	nth := p.chance.pick(tied)
	for i := range in.Candidates {
		if in.Candidates[i].InFlight != fewest {
			continue
		}
		if nth == 0 {
			d.Winner = i
			break
		}
		nth--
	}
	switch {
	case len(in.Candidates) == 1:
		d.DecidedBy = ByOnlyCandidate
	case tied > 1:
		d.DecidedBy = ByChance
	default:
		d.DecidedBy = ByInFlight
	}
}

// Commit implements [Policy]: a draw that decided is used up.
func (p *LeastRequest) Commit(_ *Input, d *Decision) {
	if d.DecidedBy == ByChance {
		p.chance.advance()
	}
}
