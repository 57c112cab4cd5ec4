package engine

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// small has room for one request of full length and little more.
var small = Config{
	BlockSize: 4, NumGPUBlocks: 13, MaxNumSeqs: 4, MaxNumBatchedTokens: 16, MaxModelLen: 40,
	EnablePrefixCaching: true, KVEvents: true, Latency: gpu,
}

func TestNewRefusesImpossibleConfigurations(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string // in the error; empty: accepted
	}{
		{"as it is", func(c *Config) {}, ""},
		{"smallest pool", func(c *Config) { c.NumGPUBlocks = 11 }, ""},
		{"pool too small for one request", func(c *Config) { c.NumGPUBlocks = 10 }, "--num-gpu-blocks-override is 10, must be at least 11"},
		{"longer than the pool", func(c *Config) { c.MaxModelLen = 49 }, "--num-gpu-blocks-override"},
		{"huge max_model_len", func(c *Config) { c.MaxModelLen = 1<<63 - 1 }, "--num-gpu-blocks-override"},
		{"budget equal to sequences", func(c *Config) { c.MaxNumBatchedTokens = 4 }, ""},
		{"budget below sequences", func(c *Config) { c.MaxNumBatchedTokens = 3 }, "--max-num-batched-tokens is 3, must be at least --max-num-seqs 4"},
		{"no block size", func(c *Config) { c.BlockSize = 0 }, "--block-size is 0"},
		{"no blocks", func(c *Config) { c.NumGPUBlocks = 0 }, "--num-gpu-blocks-override is 0"},
		{"too many blocks", func(c *Config) { c.NumGPUBlocks = maxBlocks + 1 }, "--num-gpu-blocks-override"},
		{"no sequences", func(c *Config) { c.MaxNumSeqs = -1 }, "--max-num-seqs is -1"},
		{"no budget", func(c *Config) { c.MaxNumBatchedTokens = 0 }, "--max-num-batched-tokens is 0"},
		{"no length", func(c *Config) { c.MaxModelLen = 0 }, "--max-model-len is 0"},
		{"negative a", func(c *Config) { c.Latency.PrefillToken = -1 }, "--prefill-token-us"},
		{"negative b", func(c *Config) { c.Latency.PrefillPair = -1 }, "--prefill-pair-ns"},
		{"endless b", func(c *Config) { c.Latency.PrefillPair = math.Inf(1) }, "--prefill-pair-ns"},
		{"huge b", func(c *Config) { c.Latency.PrefillPair = 1e300 }, "--prefill-pair-ns"},
		{"negative d", func(c *Config) { c.Latency.PrefillFixed = -1 }, "--prefill-fixed-ms"},
		{"negative decode", func(c *Config) { c.Latency.DecodeToken = -1 }, "--decode-token-ms"},
		{"negative sequence", func(c *Config) { c.Latency.DecodeSeq = -1 }, "--decode-seq-us"},
		{"huge sequence", func(c *Config) { c.Latency.DecodeSeq = 1 << 62 }, "--decode-seq-us"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := small
			tc.change(&cfg)
			_, err := New(cfg)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("New gives %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAddRefusesWhatCanNeverBeServed(t *testing.T) {
	e := mustNew(t, small)
	good := Request{ID: 1, Prompt: counting(30), MaxTokens: 10, Next: zeros}
	mustAdd(t, e, good)
	for name, change := range map[string]func(*Request){
		"the id is in use":               func(r *Request) { r.ID = 1 },
		"the prompt is empty":            func(r *Request) { r.Prompt = nil },
		"max_tokens is 0":                func(r *Request) { r.MaxTokens = 0 },
		"exceed --max-model-len 40":      func(r *Request) { r.MaxTokens = 11 },
		"41 prompt tokens":               func(r *Request) { r.Prompt = counting(41) },
		"max_tokens 9223372036854775807": func(r *Request) { r.MaxTokens = 1<<63 - 1 },
		"stop after -1":                  func(r *Request) { r.StopAfter = -1 },
		"no source of tokens":            func(r *Request) { r.Next = nil },
	} {
		r := good
		r.ID = 2
		change(&r)
		if err := e.Add(r); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Add gives %v, want %q", err, name)
		}
	}
	if e.Len() != 1 {
		t.Errorf("%d requests held, want 1", e.Len())
	}
}

func TestIdleEngineHasNoStep(t *testing.T) {
	e := mustNew(t, small)
	if _, ok := e.Schedule(time.Second); ok {
		t.Error("a step without requests")
	}
	if r := e.Complete(); r.Scheduled != 0 || r.End != 0 || len(r.Outputs)+len(r.Events) != 0 {
		t.Errorf("completing no step gives %+v", r)
	}
}

func TestStepTakesOnlyWhatArrivedByItsStart(t *testing.T) {
	e := mustNew(t, small)
	ms := time.Millisecond
	add := func(id uint64, at time.Duration) {
		mustAdd(t, e, Request{ID: id, Prompt: stream(int(id), 5), MaxTokens: 2, Arrival: at, Next: zeros})
	}
	prefill := gpu.Prefill(5, 0)
	add(3, 101*ms)
	add(1, 100*ms)
	if _, ok := e.Schedule(99 * ms); ok {
		t.Fatal("a step before any request has arrived")
	}
	end, _ := e.Schedule(100 * ms)
	if end != 100*ms+prefill {
		t.Fatalf("the step ends at %v", end)
	}
	add(2, 100*ms) // joins the next step, although it has arrived by the start of the planned one
	if r := e.Complete(); len(r.Outputs) != 1 || r.Outputs[0].ID != 1 {
		t.Fatalf("outputs %+v", r.Outputs)
	}
	// The engine was busy: the next step starts at the end of the last, however late it is planned.
	end2, _ := e.Schedule(time.Hour)
	r := e.Complete()
	if r.Start != end || r.End != end2 || end2-end != 2*prefill+gpu.Decode(1) {
		t.Fatalf("second step from %v to %v", r.Start, r.End)
	}
	if ids := ids(r.Outputs); !slices.Equal(ids, []uint64{1, 2, 3}) {
		t.Fatalf("outputs of %v", ids)
	}
	step(t, e)
	// Idle from here on: the next step starts when it is planned.
	add(4, 150*ms)
	e.Schedule(time.Hour)
	if r := e.Complete(); r.Start != time.Hour {
		t.Fatalf("a step of an idle engine starts at %v", r.Start)
	}
}

func ids(outputs []Output) []uint64 {
	var all []uint64
	for _, o := range outputs {
		all = append(all, o.ID)
	}
	return all
}

func TestAbort(t *testing.T) {
	e := mustNew(t, small)
	for id := range uint64(6) { // four run, two wait
		mustAdd(t, e, Request{ID: id, Prompt: stream(int(id)+1, 4), MaxTokens: 30, Next: zeros})
	}
	if e.Abort(77) {
		t.Error("abort of an unknown request succeeds")
	}
	step(t, e)
	if s := e.Stats(); s.Running != 4 || s.Waiting != 2 {
		t.Fatalf("stats %+v", s)
	}
	if !e.Abort(5) || e.Abort(5) {
		t.Error("a waiting request can be withdrawn once")
	}
	if s := e.Stats(); s.Waiting != 1 {
		t.Errorf("stats %+v after a waiting request left", s)
	}
	if !e.Abort(0) {
		t.Error("a running request can not be withdrawn")
	}
	if s := e.Stats(); s.Running != 3 || s.UsedBlocks != 3 {
		t.Errorf("stats %+v after a running request left between steps", s)
	}
	e.Schedule(0)
	if !e.Abort(1) || e.Abort(1) {
		t.Error("a request in the planned step can be withdrawn once")
	}
	if s := e.Stats(); s.Running != 3 {
		t.Errorf("stats %+v change while a step runs", s)
	}
	r := e.Complete()
	if got := ids(r.Outputs); !slices.Equal(got, []uint64{2, 3, 4}) {
		t.Errorf("outputs of %v", got)
	}
	// The id is free again, and the blocks of the aborted request still serve hits.
	mustAdd(t, e, Request{ID: 1, Prompt: stream(2, 9), MaxTokens: 1, Next: zeros})
	if r := step(t, e); r.CacheHits != 4 {
		t.Errorf("%d tokens hit of an aborted request", r.CacheHits)
	}
	for _, id := range []uint64{2, 3, 4} {
		e.Abort(id)
	}
	if s := e.Stats(); s.Running != 0 || s.UsedBlocks != 0 || e.Len() != 0 {
		t.Errorf("stats %+v after all left", s)
	}
	mustAdd(t, e, Request{ID: 9, Prompt: counting(1), MaxTokens: 1, Next: zeros})
	e.Schedule(time.Hour)
	if r := e.Complete(); r.Start != time.Hour {
		t.Errorf("an engine that all requests have left starts its next step at %v", r.Start)
	}
}

func TestResetPrefixCache(t *testing.T) {
	e := mustNew(t, small)
	add := func() { mustAdd(t, e, Request{ID: 1, Prompt: counting(9), MaxTokens: 2, Next: zeros}) }
	add()
	step(t, e)
	if e.ResetPrefixCache() {
		t.Fatal("reset while blocks are in use")
	}
	step(t, e)
	if s := e.Stats(); s.CachedBlocks != 2 {
		t.Fatalf("stats %+v", s)
	}
	for range 2 {
		if !e.ResetPrefixCache() {
			t.Fatal("reset refused on an idle engine")
		}
	}
	if s := e.Stats(); s.CachedBlocks != 0 {
		t.Fatalf("stats %+v after a reset", s)
	}
	add()
	r := step(t, e)
	kinds := make([]EventKind, len(r.Events))
	for i, ev := range r.Events {
		kinds[i] = ev.Kind
	}
	if !slices.Equal(kinds, []EventKind{AllBlocksCleared, AllBlocksCleared, BlockStored}) || r.CacheHits != 0 {
		t.Errorf("events %v and %d hits after two resets", kinds, r.CacheHits)
	}
	drain(t, e, 0)
	for range 3 * maxPendingClears {
		e.ResetPrefixCache()
	}
	add()
	if r := step(t, e); len(r.Events) != maxPendingClears+1 {
		t.Errorf("%d events after endless resets", len(r.Events))
	}
}

// The numbers are from chat completions of the real server, with blocks of 32: usage.prompt_tokens,
// cached_tokens and created_cache_tokens.
func TestCreatedTokensAsServed(t *testing.T) {
	for _, tc := range []struct{ prompt, cached, created int }{
		{160, 0, 160}, {160, 128, 32}, {145, 0, 128}, {109, 96, 0}, {43, 0, 32}, {31, 0, 0}, {4095, 4000, 64},
	} {
		cfg := Config{
			BlockSize: 32, NumGPUBlocks: 512, MaxNumSeqs: 128, MaxNumBatchedTokens: 2048, MaxModelLen: 4096, EnablePrefixCaching: true,
		}
		e := mustNew(t, cfg)
		if tc.cached > 0 {
			mustAdd(t, e, Request{ID: 1, Prompt: counting(tc.cached), MaxTokens: 1, Next: zeros})
		}
		mustAdd(t, e, Request{ID: 2, Prompt: counting(tc.prompt), MaxTokens: 1, Next: zeros})
		if o := last(t, drain(t, e, 0)); o.Cached != tc.cached || o.Created != tc.created {
			t.Errorf("prompt of %d: %d cached, %d created, want %d, %d", tc.prompt, o.Cached, o.Created, tc.cached, tc.created)
		}
	}
}

// The real server at --scheduling-policy priority and --max-num-seqs 4: four requests run when four more of
// mixed priorities come. It took them in this order, and preempted none.
func TestPriorityOrderAsServed(t *testing.T) {
	cfg := Config{
		BlockSize: 32, NumGPUBlocks: 512, MaxNumSeqs: 4, MaxNumBatchedTokens: 2048, MaxModelLen: 4096,
		EnablePrefixCaching: true, PriorityScheduling: true, Latency: gpu,
	}
	names := []string{"run0", "run1", "run2", "run3", "low9", "mid5", "high0", "stream9"}
	priority := []int{5, 5, 5, 5, 9, 5, 0, 9}
	tokens := []int{600, 700, 800, 900, 5, 5, 5, 5}
	run := func(cfg Config) (order []string) {
		e := mustNew(t, cfg)
		for i := range names {
			arrival := time.Duration(i/4) * time.Second // long before the first of the running ones ends
			mustAdd(t, e, Request{
				ID: uint64(i), Prompt: stream(i, 20), MaxTokens: tokens[i], Priority: priority[i], Arrival: arrival, Next: zeros,
			})
		}
		for e.Len() > 0 {
			for _, o := range step(t, e).Outputs {
				if o.Finish != "" {
					order = append(order, names[o.ID])
				}
				if o.Preempts > 0 {
					t.Errorf("%s was preempted", names[o.ID])
				}
			}
		}
		return order
	}
	want := []string{"run0", "high0", "mid5", "low9", "stream9", "run1", "run2", "run3"}
	if got := run(cfg); !slices.Equal(got, want) {
		t.Errorf("order of completion %v, want %v", got, want)
	}
	cfg.PriorityScheduling = false
	want = []string{"run0", "low9", "mid5", "high0", "stream9", "run1", "run2", "run3"}
	if got := run(cfg); !slices.Equal(got, want) {
		t.Errorf("first come, first served: order of completion %v, want %v", got, want)
	}
}

// A result stays valid while the next step is planned, and until it completes.
func TestResultOutlivesPlanning(t *testing.T) {
	e := mustNew(t, small)
	for id := range uint64(4) {
		mustAdd(t, e, Request{ID: id, Prompt: stream(int(id), 8), MaxTokens: 9, Next: func(i int) uint32 { return uint32(i) }})
	}
	for range 6 {
		r := step(t, e)
		outputs, events := slices.Clone(r.Outputs), copyEvents(r.Events)
		e.Schedule(0)
		if !slices.Equal(outputs, r.Outputs) || !sameEvents(events, r.Events) {
			t.Fatal("a result changed while the next step was planned")
		}
	}
}

func TestStepsDoNotAllocate(t *testing.T) {
	e := decoding(t, 64)
	if n := testing.AllocsPerRun(500, func() { e.Schedule(0); e.Complete() }); n > 4 {
		t.Errorf("a decode step of 64 sequences allocates %v times", n)
	}
}
