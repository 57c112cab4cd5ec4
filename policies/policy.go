package policies

import (
	"time"

	"github.com/inferrail/inferrail/index"
)

// Candidate is one replica that may serve the request, as the router sees it at this moment.
// A policy takes numbers that make no sense (negative ones, more cached than prompt) as the nearest that do.
type Candidate struct {
	// Name of the replica, for rotation, logs and explanations; no two candidates of one input share it.
	Name string
	// InFlight counts the requests that this router has sent there and that have not ended.
	InFlight int
	// CachedTokens of the prompt are predicted to be in the replica's KV cache; 0 without a prediction.
	CachedTokens int
	// Queued is the prefill work already waiting there, as estimated when it was sent.
	Queued time.Duration
}

// Input is all that a policy may look at. A policy keeps no reference to its slices.
type Input struct {
	// Now is a monotonic point in time: a duration since an origin that does not change.
	Now time.Duration
	// PromptTokens is the prompt's length; 0 if unknown, which no prompt has.
	PromptTokens int
	// Hashes of the prompt's full blocks; empty without a prediction.
	Hashes []index.Hash
	// Candidates, at least one.
	Candidates []Candidate
}

// Estimate is a policy's price of one candidate, term by term.
type Estimate struct {
	Queue   time.Duration // waiting for the prefill queued there
	Prefill time.Duration // computing the uncached part of the prompt; 0 if the prompt's length is unknown
	TTFT    time.Duration // sum of the terms
	Score   float64       // what the policy compares, in its own unit; for cost_model the TTFT in seconds
	Guard   string        // the guard that set the candidate aside; empty if it was allowed
}

// What Decision.DecidedBy says.
const (
	ByQueue         = "queue"          // less prefill waiting there
	ByPrefill       = "prefill"        // less of the prompt left to compute
	ByInFlight      = "in_flight"      // fewer requests in flight
	ByRotation      = "rotation"       // its turn
	ByChance        = "chance"         // drawn among equals
	ByOnlyCandidate = "only_candidate" // no other was offered
	ByGuard         = "guard"          // a guard set all others aside
)

// GuardBoundedLoad is the Estimate.Guard of a candidate that already has more than its share of the requests.
const GuardBoundedLoad = "bounded_load"

// Decision is what a policy chose and why. It is reused between calls; the zero value is ready.
type Decision struct {
	// Winner is the index of the chosen candidate.
	Winner int
	// DecidedBy names the term that put the winner furthest ahead of the runner-up: one of the By constants.
	DecidedBy string
	// Estimates per candidate, parallel to Input.Candidates; empty for policies that price nothing.
	Estimates []Estimate
}

// Policy chooses a replica for one request.
//
// Decide changes nothing: two calls with the same input give the same decision, so that explaining a decision predicts
// the next choice. It overwrites all of d and needs at least one candidate. Commit advances the policy's state (a
// rotation, its source of chance) once a decision has been followed; in and d are those of the Decide that made it.
// Calls are made under the fleet's lock, so that implementations need none of their own; they must not block.
type Policy interface {
	Decide(in *Input, d *Decision)
	Commit(in *Input, d *Decision)
}
