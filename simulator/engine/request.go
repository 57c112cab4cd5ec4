package engine

import (
	"time"

	"github.com/inferrail/inferrail/index"
)

// Request is one sequence to compute.
type Request struct {
	ID        uint64     // unique among the requests that the engine holds
	Prompt    []uint32   // at least one token; must not change until the request has left the engine
	Root      index.Hash // start of its chain of block hashes: model, adapter and cache_salt
	MaxTokens int        // at least 1; len(Prompt)+MaxTokens is at most Config.MaxModelLen
	StopAfter int        // the model ends by itself ("stop") with this many tokens; 0: never
	Priority  int        // smaller goes first under PriorityScheduling, else ignored
	// Arrival is when the request comes in: a step that starts earlier does not take it.
	Arrival time.Duration
	// SkipCache keeps the request from reading the prefix cache and out of its counters; its blocks are stored
	// all the same. vLLM does so for prompt_logprobs, and echo with logprobs (skip_reading_prefix_cache).
	SkipCache bool
	// Next gives the i-th generated token, i from 0. It is called once for each token, in order, from within
	// Complete, and must not call the engine. A preempted request keeps its tokens.
	Next func(i int) uint32
}

// FinishReason says why a request ended; empty while it runs.
type FinishReason string

// Reasons, as in vLLM's finish_reason. An aborted request has no Output, so the engine itself never reports
// FinishAbort; it is here for callers that do.
const (
	FinishStop   FinishReason = "stop"
	FinishLength FinishReason = "length"
	FinishAbort  FinishReason = "abort"
)

// Output is the token that a step generated for one request.
type Output struct {
	ID       uint64
	Token    uint32
	Index    int          // of the token among the generated ones, from 0
	First    bool         // the request's first token
	Finish   FinishReason // set with the last token: the request has left the engine
	Cached   int          // prompt tokens served from the cache at the first admission
	Created  int          // prompt tokens in full blocks that the request had newly cached by its first token
	Times    Times
	Preempts int // preemptions so far
}

// Times of a request on the engine's timeline; meaningful from its first Output on.
type Times struct {
	Arrival    time.Duration // as given
	Scheduled  time.Duration // start of the step that first admitted it
	FirstToken time.Duration // end of the step that gave its first token
	LastToken  time.Duration // end of the step that gave its newest token
}

// EventKind tells the three KV events apart.
type EventKind uint8

// The kinds of KV events of vLLM 0.32.0 (distributed/kv_events.py).
const (
	BlockStored EventKind = iota
	BlockRemoved
	AllBlocksCleared
)

// Event is one change of the prefix cache, in the order it happened.
//
// Blocks are not de-duplicated: one BlockStored is emitted for each copy of a block and one BlockRemoved for
// each copy that is evicted, also while another copy still serves hits.
type Event struct {
	Kind      EventKind
	Hashes    []index.Hash // stored: all blocks that one request filled in the step; removed: exactly one
	Parent    index.Hash   // stored: hash of the block before the first, if HasParent
	HasParent bool         // stored: false at the start of a prompt
	Tokens    []uint32     // stored: BlockSize tokens per hash
	RequestID uint64       // stored: whose blocks they are
}

// StepResult is what one completed step did. Its slices, and those inside its events, belong to the engine
// and stay valid until the next call of Complete; copy what must live longer.
type StepResult struct {
	Start, End time.Duration
	Outputs    []Output // in scheduling order: running requests first, then those admitted
	Events     []Event  // one published batch; empty if nothing changed
	Scheduled  int      // tokens computed
	// PromptDone are the requests that got their first token: their whole prompt counts as processed.
	PromptDone []uint64
	// Preempted are the requests that lost their blocks when the step was planned, in order.
	Preempted []uint64
	// CacheQueries and CacheHits count prompt tokens of the requests first scheduled in this step; those that
	// skip the cache and repeated lookups after a preemption are left out.
	CacheQueries, CacheHits int
}

// Stats are the gauges after the last step. As in vLLM they change when a step completes, not while it runs.
type Stats struct {
	Running      int
	Waiting      int     // not admitted, or preempted; requests that arrived after the step's start not included
	UsedBlocks   int     // referenced blocks
	Usage        float64 // vllm:kv_cache_usage_perc: 1 - free/(NumGPUBlocks-1); cached blocks in no use are free
	CachedBlocks int     // blocks in the prefix index, copies included
}
