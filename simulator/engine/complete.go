package engine

import (
	"slices"

	"github.com/inferrail/inferrail/index"
)

// Complete ends the planned step, at the time that Schedule returned, and says what it did. Withdrawn requests
// leave first, then each request in the step that has computed all its known tokens gets the next one, and
// leaves if that was its last. Blocks freed here can be used from the next step on. Without a planned step
// the result is zero.
func (e *Engine) Complete() StepResult {
	if !e.planned {
		return StepResult{}
	}
	for _, s := range e.aborted {
		e.leave(s)
	}
	for _, s := range e.plan {
		n := s.planned
		s.planned = 0
		if s.state == aborted {
			continue
		}
		s.computed += n
		if s.computed == s.known() {
			e.emit(s)
		}
	}
	// A request that has left has no blocks; every other one in the list has some.
	e.running = slices.DeleteFunc(e.running, func(s *sequence) bool { return s.blocks == nil })
	clear(e.plan)
	clear(e.aborted)
	e.plan, e.aborted = e.plan[:0], e.aborted[:0]
	e.planned = false
	e.busy = e.hasWork()
	e.refreshStats()

	e.step.result.Start, e.step.result.End = e.start, e.end
	result := e.step.result
	e.step, e.spare = e.spare, e.step
	e.step.reset()
	return result
}

// emit gives a request its next token.
func (e *Engine) emit(s *sequence) {
	i := len(s.output)
	token := s.req.Next(i)
	s.output = append(s.output, token)
	s.times.LastToken = e.end
	if i == 0 {
		s.times.FirstToken = e.end
		s.created = s.stored*e.cfg.BlockSize - s.cached
		e.step.result.PromptDone = append(e.step.result.PromptDone, s.req.ID)
	}
	out := Output{
		ID: s.req.ID, Token: token, Index: i, First: i == 0,
		Cached: s.cached, Created: s.created, Times: s.times, Preempts: s.preempts,
	}
	// The order is that of check_stop (v1/core/sched/utils.py): the model's own end goes before the limit.
	switch {
	case i+1 == s.req.StopAfter:
		out.Finish = FinishStop
	case i+1 == s.req.MaxTokens:
		out.Finish = FinishLength
	}
	e.step.result.Outputs = append(e.step.result.Outputs, out)
	if out.Finish != "" {
		delete(e.held, s.req.ID)
		e.leave(s)
		return
	}
	if e.cfg.EnablePrefixCaching {
		e.block = s.extendHashes(e.cfg.BlockSize, e.block)
	}
}

// recordStored notes that a request's blocks [from, to) have entered the index.
func (e *Engine) recordStored(s *sequence, from, to int) {
	if !e.cfg.KVEvents {
		return
	}
	r := e.step
	h, t := len(r.hashes), len(r.tokens)
	r.hashes = append(r.hashes, s.hashes[from:to]...)
	r.tokens = s.tokens(r.tokens, from*e.cfg.BlockSize, to*e.cfg.BlockSize)
	ev := Event{
		Kind:      BlockStored,
		Hashes:    slices.Clip(r.hashes[h:]),
		Tokens:    slices.Clip(r.tokens[t:]),
		RequestID: s.req.ID,
	}
	if from > 0 {
		ev.Parent, ev.HasParent = s.hashes[from-1], true
	}
	r.result.Events = append(r.result.Events, ev)
}

// recordRemoved notes that a block has been evicted.
func (e *Engine) recordRemoved(hash index.Hash) {
	if !e.cfg.KVEvents {
		return
	}
	r := e.step
	n := len(r.hashes)
	r.hashes = append(r.hashes, hash)
	r.result.Events = append(r.result.Events, Event{Kind: BlockRemoved, Hashes: r.hashes[n : n+1 : n+1]})
}
