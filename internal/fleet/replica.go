package fleet

import (
	"sync"
	"time"
)

// Replica is one engine endpoint with this router's counts of what it sent there. Make it with [NewReplica].
type Replica struct {
	name string

	mu     sync.Mutex
	load   Load // QueuedPrefill stays 0; the queue has it
	queue  queue
	report reportState
}

// NewReplica returns an idle replica. The name, host:port, identifies it in logs, metrics and headers.
func NewReplica(name string) *Replica { return &Replica{name: name} }

// Name is the replica's name, host:port.
func (r *Replica) Name() string { return r.name }

// Load is what this router has on a replica at one moment. No field is ever negative.
type Load struct {
	// InFlight counts requests that have not ended.
	InFlight int
	// Waiting counts the requests in flight that have no response head.
	Waiting int
	// AwaitingFirstByte counts the requests in flight that have no first byte of the response body.
	AwaitingFirstByte int
	// PromptTokens is the sum of the prompts of the requests in flight.
	PromptTokens int
	// QueuedPromptTokens is the sum of the prompts of the requests that await their first byte.
	QueuedPromptTokens int
	// QueuedPrefill estimates how long the engine will compute before it begins on a prompt that arrives at this moment:
	// the prefill of every request that awaits its first byte, as estimated when it was sent, less the time gone by.
	QueuedPrefill time.Duration
}

// Limits bound what a replica may hold. They come with each call because several configurations can share a replica.
type Limits struct {
	// MaxConcurrency caps requests in flight; 0 is no cap.
	MaxConcurrency int
	// MaxPending caps requests that have no response head; 0 is no cap.
	MaxPending int
}

// Admits reports whether a replica with this load has room for one more request.
func (l Limits) Admits(load Load) bool {
	return (l.MaxConcurrency <= 0 || load.InFlight < l.MaxConcurrency) &&
		(l.MaxPending <= 0 || load.Waiting < l.MaxPending)
}

// Load gives the replica's load at now.
func (r *Replica) Load(now time.Duration) Load {
	r.mu.Lock()
	defer r.mu.Unlock()
	load := r.load
	load.QueuedPrefill = r.queue.at(now)
	return load
}

// Acquire counts a request that is sent to the replica at now, with the length of its prompt (0 if unknown) and the time
// its prefill is estimated to take on an idle engine. The lease must be released.
func (r *Replica) Acquire(now time.Duration, promptTokens int, prefill time.Duration) *Lease {
	lease, _ := r.TryAcquire(now, promptTokens, prefill, Limits{})
	return lease
}

// TryAcquire is Acquire unless the replica is full; then it counts nothing and gives nil and false. Checking and counting
// are one step: however many callers race, limits are never overshot.
func (r *Replica) TryAcquire(now time.Duration, promptTokens int, prefill time.Duration, limits Limits) (*Lease, bool) {
	l := &Lease{
		replica:      r,
		promptTokens: min(max(promptTokens, 0), maxPromptTokens),
		queued:       min(max(prefill, 0), maxPrefill),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.drain(now)
	if !limits.Admits(r.load) {
		return nil, false
	}
	r.load.InFlight++
	r.load.Waiting++
	r.load.AwaitingFirstByte++
	r.load.PromptTokens += l.promptTokens
	r.load.QueuedPromptTokens += l.promptTokens
	r.queue.push(l)
	return l, true
}

// What one request can add to the counters, so that sums over any number of requests cannot overflow.
const (
	maxPromptTokens = 1 << 31
	maxPrefill      = time.Hour
)
