package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/inferrail/inferrail/index"
)

// maxPendingClears bounds the AllBlocksCleared events that wait for a step. More of them in one batch say
// nothing more.
const maxPendingClears = 1024

// Engine is one simulated engine. Create it with New.
type Engine struct {
	cfg  Config
	pool *pool

	held    map[uint64]*sequence // all requests but aborted ones
	future  queue                // pending, by arrival
	waiting queue                // in the order of the scheduling policy
	running []*sequence          // in the order of admission
	added   int64                // requests added so far
	turns   int64                // last turn given at the end of the queue
	front   int64                // last turn given at its front, counting down

	planned    bool          // a step is planned
	start, end time.Duration // of the planned step, else of the last one
	busy       bool          // there was work ever since end
	plan       []*sequence   // sequences in the planned step, in scheduling order
	aborted    []*sequence   // withdrawn from the planned step

	clears int // AllBlocksCleared events that wait for a step
	stats  Stats
	step   *record  // of the planned step, or of the next one
	spare  *record  // of the step before: its slices are lent out
	hits   []int32  // scratch: cached blocks of the request being admitted
	block  []uint32 // scratch: tokens of one block
}

// record gathers a StepResult. Two take turns, so that a result stays valid while the next step is planned.
// Events point into hashes and tokens: when these grow, earlier events keep the old memory.
type record struct {
	result StepResult
	hashes []index.Hash
	tokens []uint32
}

func (r *record) reset() {
	r.result = StepResult{
		Outputs:    r.result.Outputs[:0],
		Events:     r.result.Events[:0],
		PromptDone: r.result.PromptDone[:0],
		Preempted:  r.result.Preempted[:0],
	}
	r.hashes, r.tokens = r.hashes[:0], r.tokens[:0]
}

// New returns an idle engine with an empty cache. It refuses what vLLM refuses, and reports every fault by
// the flag's name: sizes that are not positive, a pool too small for one request of MaxModelLen tokens, a
// token budget below MaxNumSeqs.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring engine: %w", err)
	}
	e := &Engine{
		cfg:     cfg,
		held:    make(map[uint64]*sequence),
		future:  queue{before: byArrival},
		waiting: queue{before: byTurn},
		step:    new(record),
		spare:   new(record),
	}
	if cfg.PriorityScheduling {
		e.waiting.before = byPriority
	}
	e.pool = newPool(cfg.NumGPUBlocks, e.recordRemoved)
	return e, nil
}

// Add queues a request. It may be called while a step is planned, and with an Arrival that is still to come:
// the request joins the first step planned afterwards that starts at its Arrival or later. It is an error if
// the request can never be served or its ID is held already; the engine then keeps nothing of it.
//
// Add hashes the prompt, so it takes time in proportion to it.
func (e *Engine) Add(r Request) error {
	if err := e.check(r); err != nil {
		return fmt.Errorf("adding request %d: %w", r.ID, err)
	}
	e.added++
	s := &sequence{req: r, added: e.added, times: Times{Arrival: r.Arrival}}
	if e.cfg.EnablePrefixCaching {
		e.block = s.extendHashes(e.cfg.BlockSize, e.block)
	}
	e.held[r.ID] = s
	e.future.push(s)
	return nil
}

func (e *Engine) check(r Request) error {
	switch {
	case e.held[r.ID] != nil:
		return fmt.Errorf("the id is in use")
	case len(r.Prompt) == 0:
		return fmt.Errorf("the prompt is empty")
	case r.MaxTokens < 1:
		return fmt.Errorf("max_tokens is %d, must be at least 1", r.MaxTokens)
	case len(r.Prompt) > e.cfg.MaxModelLen-1 || r.MaxTokens > e.cfg.MaxModelLen-len(r.Prompt):
		return fmt.Errorf("%d prompt tokens and max_tokens %d exceed --max-model-len %d", len(r.Prompt), r.MaxTokens, e.cfg.MaxModelLen)
	case r.StopAfter < 0:
		return fmt.Errorf("stop after %d tokens, must not be negative", r.StopAfter)
	case r.Next == nil:
		return fmt.Errorf("no source of tokens")
	}
	return nil
}

// Abort withdraws a request: a waiting one at once, a running one when the planned step completes, or at once
// if none is planned. Its full blocks stay cached. An aborted request gives no further Output. Abort reports
// whether the engine held the request.
func (e *Engine) Abort(id uint64) bool {
	s := e.held[id]
	if s == nil {
		return false
	}
	delete(e.held, id)
	switch {
	case s.state == pending:
		e.future.remove(s)
	case s.state == waiting:
		e.waiting.remove(s)
	case e.planned:
		s.state = aborted
		e.aborted = append(e.aborted, s)
		return true
	default:
		e.leave(s)
		e.running = slices.DeleteFunc(e.running, func(r *sequence) bool { return r == s })
	}
	if !e.planned {
		e.busy = e.busy && e.hasWork()
		e.refreshStats()
	}
	return true
}

// ResetPrefixCache forgets all cached blocks and reports whether it did: like vLLM it refuses while any block
// is in use. With KVEvents an AllBlocksCleared leads the events of the next step; until there is one, nothing
// tells.
func (e *Engine) ResetPrefixCache() bool {
	if !e.pool.reset() {
		return false
	}
	if e.cfg.KVEvents && e.cfg.EnablePrefixCaching {
		e.clears = min(e.clears+1, maxPendingClears)
	}
	e.refreshStats()
	return true
}

// Stats returns the gauges after the last step; withdrawals and resets between steps show at once.
func (e *Engine) Stats() Stats { return e.stats }

// Len is the number of requests held: running, waiting and not yet arrived.
func (e *Engine) Len() int { return len(e.held) }

func (e *Engine) refreshStats() {
	e.stats = Stats{
		Running:      len(e.running),
		Waiting:      e.waiting.len(),
		UsedBlocks:   e.pool.used(),
		Usage:        1 - float64(e.pool.free)/float64(e.pool.total-1),
		CachedBlocks: e.pool.cached,
	}
}

// hasWork tells whether a step that starts at the end of the last one would find a request.
func (e *Engine) hasWork() bool {
	if len(e.running) > 0 || e.waiting.len() > 0 {
		return true
	}
	s := e.future.peek()
	return s != nil && s.req.Arrival <= e.end
}

// leave returns a request's blocks to the pool.
func (e *Engine) leave(s *sequence) {
	e.pool.release(s.blocks)
	s.blocks = nil
}
