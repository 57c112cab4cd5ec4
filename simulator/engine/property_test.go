package engine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/inferrail/inferrail/index"
)

func drawConfig(t *rapid.T) Config {
	cfg := Config{
		BlockSize:           rapid.IntRange(1, 6).Draw(t, "block size"),
		MaxNumSeqs:          rapid.IntRange(1, 6).Draw(t, "seqs"),
		MaxModelLen:         rapid.IntRange(2, 60).Draw(t, "max len"),
		EnablePrefixCaching: rapid.IntRange(0, 4).Draw(t, "caching") > 0,
		PriorityScheduling:  rapid.Bool().Draw(t, "priority"),
		KVEvents:            true,
	}
	cfg.MaxNumBatchedTokens = cfg.MaxNumSeqs + rapid.IntRange(0, 40).Draw(t, "budget")
	// Often too few blocks for all that may run, so that there is eviction, waiting and preemption.
	cfg.NumGPUBlocks = blocksFor(cfg.MaxModelLen, cfg.BlockSize) + 1 + rapid.IntRange(0, 20).Draw(t, "spare blocks")
	if rapid.Bool().Draw(t, "timed") {
		cfg.Latency = drawLatency(t)
	}
	return cfg
}

func drawRequest(t *rapid.T, cfg Config, id uint64, now time.Duration) Request {
	r := Request{
		ID: id, Root: index.Root("m", "", "", cfg.BlockSize),
		Priority:  rapid.IntRange(0, 2).Draw(t, "priority"),
		SkipCache: rapid.IntRange(0, 9).Draw(t, "skip") == 0,
		Arrival:   now + time.Duration(rapid.Int64Range(-1e6, 1e7).Draw(t, "arrival")),
	}
	n := rapid.IntRange(1, cfg.MaxModelLen-1).Draw(t, "prompt")
	r.MaxTokens = rapid.IntRange(1, cfg.MaxModelLen-n).Draw(t, "max tokens")
	if rapid.Bool().Draw(t, "stops") {
		r.StopAfter = rapid.IntRange(1, r.MaxTokens+1).Draw(t, "stop after")
	}
	// Few streams, so that prompts share prefixes; some continue with what a request generated.
	head := rapid.IntRange(0, n).Draw(t, "shared")
	r.Prompt = stream(rapid.IntRange(1, 3).Draw(t, "stream"), head)
	for i := range n - head {
		r.Prompt = append(r.Prompt, generated(id, i))
	}
	return r
}

func TestAnyScheduleIsSound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWatcher(t, drawConfig(t))
		var now time.Duration
		var id uint64
		planned := false
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id++
				w.add(drawRequest(t, w.cfg, id, now))
			},
			"add more": func(t *rapid.T) {
				for range rapid.IntRange(1, 5).Draw(t, "n") {
					id++
					w.add(drawRequest(t, w.cfg, id, now))
				}
			},
			"abort":   func(t *rapid.T) { w.abort(rapid.Uint64Range(max(id, 8)-8, id+1).Draw(t, "id")) },
			"reset":   func(t *rapid.T) { w.reset() },
			"advance": func(t *rapid.T) { now += time.Duration(rapid.Int64Range(0, 1e8).Draw(t, "by")) },
			"plan":    func(t *rapid.T) { planned = w.plan(now) },
			"complete": func(t *rapid.T) {
				if !planned {
					t.Skip("no step is planned")
				}
				w.complete()
				planned = false
			},
			"steps": func(t *rapid.T) {
				for range rapid.IntRange(1, 20).Draw(t, "n") {
					if !planned && !w.plan(now) {
						return
					}
					w.complete()
					planned = false
				}
			},
		})
		if planned {
			w.complete()
		}
		w.finish(now)
	})
}

// The same calls at the same times give the same results.
func TestEngineIsDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		requests := make([]Request, rapid.IntRange(1, 12).Draw(t, "requests"))
		for i := range requests {
			requests[i] = drawRequest(t, cfg, uint64(i), 0)
			requests[i].Next = zeros
		}
		run := func() (results []StepResult) {
			e := mustNew(t, cfg)
			for _, r := range requests {
				mustAdd(t, e, r)
			}
			for now := time.Duration(0); e.Len() > 0; now += time.Millisecond {
				for {
					if _, ok := e.Schedule(now); !ok {
						break
					}
					r := e.Complete()
					r.Outputs, r.Events, r.PromptDone, r.Preempted = slices.Clone(r.Outputs), copyEvents(r.Events), nil, slices.Clone(r.Preempted)
					results = append(results, r)
				}
			}
			return results
		}
		a, b := run(), run()
		if len(a) != len(b) {
			t.Fatalf("%d and %d steps", len(a), len(b))
		}
		for i := range a {
			if a[i].End != b[i].End || !slices.Equal(a[i].Outputs, b[i].Outputs) || !slices.Equal(a[i].Preempted, b[i].Preempted) || !sameEvents(a[i].Events, b[i].Events) {
				t.Fatalf("step %d differs:\n%+v\n%+v", i, a[i], b[i])
			}
		}
	})
}

func sameEvents(a, b []Event) bool {
	return slices.EqualFunc(a, b, func(x, y Event) bool {
		return x.Kind == y.Kind && x.RequestID == y.RequestID && x.Parent == y.Parent && x.HasParent == y.HasParent &&
			slices.Equal(x.Hashes, y.Hashes) && slices.Equal(x.Tokens, y.Tokens)
	})
}

// FuzzEngine reads a configuration and a sequence of calls from bytes and checks every step.
func FuzzEngine(f *testing.F) {
	f.Add([]byte("\x04\x08\x03\x20\x10\x00" + "\x00\x0a\x05\x01\x03\x03\x00\x0a\x05\x01\x03\x03\x03\x03"))
	f.Add([]byte("\x01\x00\x05\x10\x30\x03" + "\x00\xff\xff\x07\x00\x01\x01\x02\x03\x03\x01\x02\x03\x02\x04\x03"))
	f.Add([]byte("\x02\x01\x08\x3f\x3f\x07" + "\x00\x10\x3f\x01\x00\x10\x3f\x02\x00\x10\x3f\x05\x03\x03\x03\x03\x03\x03\x03\x03\x01\x01\x03"))
	f.Fuzz(func(t *testing.T, data []byte) {
		next := func() int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b)
		}
		cfg := Config{BlockSize: 1 + next()%8, MaxNumSeqs: 1 + next()%8, KVEvents: true}
		cfg.MaxNumBatchedTokens = cfg.MaxNumSeqs + next()
		cfg.MaxModelLen = 2 + next()%80
		cfg.NumGPUBlocks = 1 + blocksFor(cfg.MaxModelLen, cfg.BlockSize) + next()%64
		flags := next()
		cfg.EnablePrefixCaching, cfg.PriorityScheduling = flags&1 == 0, flags&2 != 0
		if flags&4 != 0 {
			cfg.Latency = gpu
		}
		w := newWatcher(t, cfg)
		var now time.Duration
		for id := uint64(0); len(data) > 0; {
			switch next() % 5 {
			case 0:
				id++
				shape := next()
				n := 1 + next()%(cfg.MaxModelLen-1)
				w.add(Request{
					ID: id, Prompt: stream(1+shape%3, n), Root: index.Root("m", "", "", cfg.BlockSize),
					MaxTokens: 1 + next()%(cfg.MaxModelLen-n), StopAfter: shape >> 5, Priority: shape % 4, SkipCache: shape == 77,
					Arrival: now + time.Duration(shape%2)*time.Millisecond,
				})
			case 1:
				w.abort(id - min(id, uint64(next()%4)))
			case 2:
				w.reset()
			case 3:
				if w.plan(now) {
					for range next() % 3 {
						w.abort(id - min(id, uint64(next()%4)))
					}
					w.complete()
				}
			case 4:
				now += time.Duration(next()) * time.Millisecond
			}
		}
		w.finish(now)
	})
}
