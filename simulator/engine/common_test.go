package engine

import (
	"time"
)

// tester is what testing.TB and *rapid.T have in common.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func mustNew(tb tester, cfg Config) *Engine {
	tb.Helper()
	e, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func mustAdd(tb tester, e *Engine, r Request) {
	tb.Helper()
	if err := e.Add(r); err != nil {
		tb.Fatal(err)
	}
}

// checkInvariants compares the engine's bookkeeping with what it can be counted from.
func checkInvariants(tb tester, e *Engine) {
	tb.Helper()
	p := e.pool
	refs := make([]int32, len(p.blocks))
	for _, s := range e.running {
		if len(s.blocks) == 0 {
			tb.Fatalf("running request %d holds no block", s.req.ID)
		}
		for _, id := range s.blocks {
			refs[id]++
		}
	}
	if len(e.running) > e.cfg.MaxNumSeqs {
		tb.Fatalf("%d requests run, at most %d may", len(e.running), e.cfg.MaxNumSeqs)
	}
	if !e.planned && e.Len() != len(e.running)+e.waiting.len()+e.future.len() {
		tb.Fatalf("%d requests held, but %d run, %d wait and %d are to come", e.Len(), len(e.running), e.waiting.len(), e.future.len())
	}
	checkPool(tb, p, refs)
}

// checkPool walks the pool's lists; refs is how many times each block is held.
func checkPool(tb tester, p *pool, refs []int32) {
	tb.Helper()
	listed := make([]bool, len(p.blocks))
	free := p.total - len(p.blocks)
	note := func(id int32) {
		if listed[id] || p.blocks[id].refs != 0 {
			tb.Fatalf("block %d is free twice or in use", id)
		}
		listed[id] = true
		free++
	}
	for id := p.bare; id != noBlock; id = p.blocks[id].next {
		if note(id); p.blocks[id].hashed {
			tb.Fatalf("block %d has a hash and is in front", id)
		}
	}
	prev := int32(noBlock)
	for id := p.head; id != noBlock; prev, id = id, p.blocks[id].next {
		if note(id); p.blocks[id].prev != prev {
			tb.Fatalf("block %d is linked to %d, not %d", id, p.blocks[id].prev, prev)
		}
	}
	if p.tail != prev || p.free != free {
		tb.Fatalf("tail %d, %d free, want %d, %d", p.tail, p.free, prev, free)
	}
	cached := 0
	for id := 1; id < len(p.blocks); id++ {
		b := p.blocks[id]
		if b.refs != refs[id] || listed[id] != (b.refs == 0) {
			tb.Fatalf("block %d has %d references and is free %v, but is held %d times", id, b.refs, listed[id], refs[id])
		}
		if b.hashed {
			cached++
			if first := p.lookup(b.hash); first == noBlock || p.blocks[first].hash != b.hash || p.blocks[b.copyNext].copyPrev != int32(id) {
				tb.Fatalf("block %d is not in the index", id)
			}
		}
	}
	if cached != p.cached || len(p.byHash) > cached {
		tb.Fatalf("%d blocks cached under %d hashes, counted %d", cached, len(p.byHash), p.cached)
	}
}

func zeros(int) uint32 { return 0 }

// counting is the prompt 0, 1, 2, …
func counting(n int) []uint32 { return stream(0, n) }

// stream is a prompt of n tokens that shares none with another stream.
func stream(id, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(id<<20 + i)
	}
	return tokens
}

// step plans and completes one step; there must be work.
func step(tb tester, e *Engine) StepResult {
	tb.Helper()
	if _, ok := e.Schedule(0); !ok {
		tb.Fatal("no work")
	}
	return e.Complete()
}

// drain runs the engine until it is idle and returns all outputs.
func drain(tb tester, e *Engine, now time.Duration) []Output {
	tb.Helper()
	var all []Output
	for range 1_000_000 {
		end, ok := e.Schedule(now)
		if !ok {
			return all
		}
		all = append(all, e.Complete().Outputs...)
		now = end
	}
	tb.Fatal("the engine does not come to rest")
	return nil
}

func last(tb tester, outputs []Output) Output {
	tb.Helper()
	if len(outputs) == 0 {
		tb.Fatal("no output")
	}
	return outputs[len(outputs)-1]
}
