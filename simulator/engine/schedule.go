package engine

import (
	"slices"
	"time"
)

// Schedule plans the next step and returns when it ends; Complete then ends it. Without work it returns false
// and changes nothing. The step starts when the last one ended if the engine has had work ever since, else at
// now (but never before that end); requests that arrive after its start are left for a later one. A step that
// is planned already is kept: Schedule returns its end again.
//
// The rules are those of vLLM's Scheduler.schedule: first the running requests in list order, each computing
// one token or the next chunk of its prompt; then, unless a request was preempted, waiting ones while the
// token budget, the sequences and the free blocks last, without overtaking.
func (e *Engine) Schedule(now time.Duration) (end time.Duration, ok bool) {
	if e.planned {
		return e.end, true
	}
	start := e.end
	if !e.busy {
		start = max(now, e.end)
	}
	e.receive(start)
	if len(e.running) == 0 && e.waiting.len() == 0 {
		return 0, false
	}
	e.planned, e.start = true, start
	for ; e.clears > 0; e.clears-- {
		e.step.result.Events = append(e.step.result.Events, Event{Kind: AllBlocksCleared})
	}
	// Under the priority policy a request may preempt itself while others could run. vLLM then runs an empty
	// step, which takes no time: it is folded into the next one. Each round without a token leaves fewer
	// requests running, and with none running the whole pool is free for the first that waits.
	for len(e.plan) == 0 {
		budget, preempted := e.planRunning(e.cfg.MaxNumBatchedTokens)
		if !preempted {
			e.planWaiting(budget)
		}
	}
	e.end = start + e.cost()
	return e.end, true
}

// receive moves the requests that have arrived by start to the waiting queue.
func (e *Engine) receive(start time.Duration) {
	for s := e.future.peek(); s != nil && s.req.Arrival <= start; s = e.future.peek() {
		e.future.pop()
		e.turns++
		s.turn, s.state = e.turns, waiting
		e.waiting.push(s)
	}
}

// planRunning gives the running requests their tokens and returns what is left of the budget, and whether
// it had to preempt.
func (e *Engine) planRunning(budget int) (left int, preempted bool) {
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(s.known()-s.computed, budget)
		for !e.extend(s, n) {
			at := e.victim()
			victim := e.running[at]
			budget += e.preempt(at)
			preempted = true
			if victim == s {
				return budget, true
			}
			if at < i {
				i--
			}
		}
		e.schedule(s, n)
		budget -= n
	}
	return budget, preempted
}

// planWaiting admits waiting requests; the first that does not fit stops it.
func (e *Engine) planWaiting(budget int) {
	for budget > 0 && len(e.running) < e.cfg.MaxNumSeqs {
		s := e.waiting.peek()
		if s == nil || !e.admit(s, budget) {
			return
		}
		e.waiting.pop()
		e.running = append(e.running, s)
		s.state = running
		budget -= s.planned
	}
}

func (e *Engine) schedule(s *sequence, n int) {
	s.planned = n
	e.plan = append(e.plan, s)
	e.step.result.Scheduled += n
}

// extend gives a running request the blocks for n more tokens, or reports that there are too few.
func (e *Engine) extend(s *sequence, n int) bool {
	need := blocksFor(s.computed+n, e.cfg.BlockSize) - len(s.blocks)
	if need > e.pool.free {
		return false
	}
	e.allocate(s, need, s.computed+n)
	return true
}

// admit looks up the cached blocks of a waiting request and gives it blocks for its first chunk, if the whole
// of it would fit. Resumed requests bring their generated tokens along.
func (e *Engine) admit(s *sequence, budget int) bool {
	hits, fromFree := e.findCached(s)
	size := e.cfg.BlockSize
	if blocksFor(s.known(), size)-len(hits)+fromFree > e.pool.free {
		return false
	}
	for _, id := range hits {
		e.pool.touch(id)
	}
	s.blocks = append(slices.Grow(s.blocks[:0], blocksFor(s.known(), size)), hits...)
	s.stored = len(hits)
	s.cachedAt, s.prefillTo = len(hits)*size, s.known()
	s.computed = s.cachedAt
	n := min(s.known()-s.computed, budget)
	e.allocate(s, blocksFor(s.computed+n, size)-len(hits), s.computed+n)
	e.schedule(s, n)
	if s.preempts == 0 {
		s.times.Scheduled = e.start
		s.cached = s.cachedAt
		if e.reads(s) {
			e.step.result.CacheQueries += len(s.req.Prompt)
			e.step.result.CacheHits += s.cachedAt
		}
	}
	return true
}

// reads tells whether a request looks its prompt up in the cache.
func (e *Engine) reads(s *sequence) bool { return e.cfg.EnablePrefixCaching && !s.req.SkipCache }

// findCached returns the longest run of cached blocks from the start, short of the last known token, which
// must be computed, and how many of them are in the free queue. The slice is scratch space.
func (e *Engine) findCached(s *sequence) (hits []int32, fromFree int) {
	if !e.reads(s) {
		return nil, 0
	}
	hits = e.hits[:0]
	for _, hash := range s.hashes[:(s.known()-1)/e.cfg.BlockSize] {
		id := e.pool.lookup(hash)
		if id == noBlock {
			break
		}
		if e.pool.blocks[id].refs == 0 {
			fromFree++
		}
		hits = append(hits, id)
	}
	e.hits = hits
	return hits, fromFree
}

// allocate takes n blocks for a request and enters into the index all of its blocks that are full once
// computed tokens are done. They are there before they are computed: a request admitted in the same step
// hits them.
func (e *Engine) allocate(s *sequence, n, computed int) {
	for range n {
		s.blocks = append(s.blocks, e.pool.take())
	}
	if !e.cfg.EnablePrefixCaching {
		return
	}
	full := computed / e.cfg.BlockSize
	if full <= s.stored {
		return
	}
	for i := s.stored; i < full; i++ {
		e.pool.store(s.blocks[i], s.hashes[i])
	}
	e.recordStored(s, s.stored, full)
	s.stored = full
}

// victim is the place of the running request to preempt: the last one, or under the priority policy the
// first among those with the largest (priority, arrival), as Python's max finds it.
func (e *Engine) victim() int {
	last := len(e.running) - 1
	if !e.cfg.PriorityScheduling {
		return last
	}
	worst := 0
	for i, s := range e.running[1:] {
		w := e.running[worst].req
		if s.req.Priority > w.Priority || s.req.Priority == w.Priority && s.req.Arrival > w.Arrival {
			worst = i + 1
		}
	}
	return worst
}

// preempt takes a running request's blocks and puts it in front of the waiting queue, to be computed again
// from the start. It returns the tokens that the planned step had given it.
func (e *Engine) preempt(at int) (restored int) {
	s := e.running[at]
	e.running = slices.Delete(e.running, at, at+1)
	if s.planned > 0 {
		e.plan = slices.DeleteFunc(e.plan, func(p *sequence) bool { return p == s })
		e.step.result.Scheduled -= s.planned
	}
	restored, s.planned = s.planned, 0
	e.leave(s)
	s.computed, s.stored = 0, 0
	s.preempts++
	e.front--
	s.turn, s.state = e.front, waiting
	e.waiting.push(s)
	e.step.result.Preempted = append(e.step.result.Preempted, s.req.ID)
	return restored
}

// cost is how long the planned step takes: its prefill chunks and its decode batch.
func (e *Engine) cost() time.Duration {
	var sum time.Duration
	decodes := 0
	for _, s := range e.plan {
		if s.computed < s.prefillTo {
			sum += e.cfg.Latency.chunk(s.computed, s.computed+s.planned, s.cachedAt)
		} else {
			decodes++
		}
	}
	return sum + e.cfg.Latency.Decode(decodes)
}
