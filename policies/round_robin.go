package policies

// RoundRobin is the policy round_robin: replicas take turns in the order of their names.
//
// Rule: the first name after the last winner's, and after the last name the first.
// Inputs: the candidates' names.
// Prefer it as a baseline to measure against, or for engines without a prefix cache and requests of much the same size.
//
// The turn is remembered as a name, not as a count: a replica that joins, leaves or is full for a moment moves nobody else's
// turn, whereas a counter modulo the number of candidates would skip some replicas and repeat others at each change.
type RoundRobin struct {
	last string // the last winner; names sort after the empty one
}

// NewRoundRobin returns a rotation that begins with the first name.
func NewRoundRobin() *RoundRobin { return new(RoundRobin) }

// Decide implements [Policy].
func (p *RoundRobin) Decide(in *Input, d *Decision) {
	first, next := 0, -1
	for i := range in.Candidates {
		name := in.Candidates[i].Name
		if name < in.Candidates[first].Name {
			first = i
		}
		if name > p.last && (next < 0 || name < in.Candidates[next].Name) {
			next = i
		}
	}
	if next < 0 {
		next = first
	}
	d.Winner, d.DecidedBy, d.Estimates = next, ByRotation, d.Estimates[:0]
	if len(in.Candidates) == 1 {
		d.DecidedBy = ByOnlyCandidate
	}
}

// Commit implements [Policy]: the turn passes on.
func (p *RoundRobin) Commit(in *Input, d *Decision) { p.last = in.Candidates[d.Winner].Name }
