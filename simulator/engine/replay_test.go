package engine

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/inferrail/inferrail/index"
)

// scenario is one line of the captures; see testdata/README.md.
type scenario struct {
	Scenario  string
	Blocks    int
	BlockSize int `json:"block_size"`
	MaxLen    int `json:"max_model_len"`
	Budget    int `json:"max_num_batched_tokens"`
	Steps     []captureStep
}

type captureStep struct {
	Label       string
	Concurrent  bool
	Requests    []captureRequest
	Results     []captureResult
	Order       []int // of completion
	Batches     [][]captureEvent
	Queries     int
	Hits        int
	Preemptions int
	Generated   int
}

type captureRequest struct {
	Prompts   [][]uint32
	MaxTokens int `json:"max_tokens"`
	N         int
	Beam      bool
	Salt      string
	SkipCache bool `json:"skip_cache"`
}

type captureResult struct {
	Aborted  bool
	Cached   *int
	Finish   FinishReason
	TokenIDs [][]uint32 `json:"token_ids"`
}

type captureEvent struct {
	Stored   []uint64
	Parent   *uint64
	TokenIDs []uint32 `json:"token_ids"`
	Removed  []uint64
	Cleared  bool
}

// arrivals says before which engine step each request of a concurrent step came in: 0 is the first step. The
// captures do not tell; these are the numbers, found by trying, under which the engine's batches are the captured
// ones. Where several fit, the smallest are here.
var arrivals = map[string][]int{
	"a14-concurrent-long-short/both":                                         {0, 0},
	"a17-generated-blocks-of-running-shared/running + follow-up 1.0 s later": {0, 88},
	"a19-batch-of-8/8":                            {0, 1, 1, 1, 1, 1, 1, 1},
	"a19-batch-of-8/8 again":                      {0, 0, 0, 0, 0, 0, 0, 0},
	"b06-waiting-for-blocks/A then B 0.3 s later": {0, 0},
	"b07-preemption-3-long/three":                 {0, 1, 3}, // the only fit with gaps below 12 steps: 125 batches, three preemptions
	"b13-two-big-concurrent/two":                  {0, 0},
	"b14-head-of-line/A, B, C":                    {0, 0, 0},
}

// resets are the steps that followed a reset of the prefix cache within a scenario.
var resets = map[string]bool{
	"a18-reset/after reset (AllBlocksCleared comes with this step's batch)": true,
}

// TestReplayOfRealServer demands that the engine does in every captured step what the server did: cached tokens,
// counters, preemptions, order and reason of completion, and all KV events, batch by batch, in order. What is
// not compared, for lack of determinacy: the gauges while a step runs (sampled at arbitrary moments), times, and
// how the events of one request's several sequences are cut into batches.
func TestReplayOfRealServer(t *testing.T) {
	for name, want := range map[string]struct{ sequential, concurrent int }{"a": {86, 4}, "b": {45, 4}} {
		t.Run(name, func(t *testing.T) {
			r := &replayer{t: t, toEngine: map[uint64]index.Hash{}, toServer: map[index.Hash]uint64{}}
			for _, sc := range loadScenarios(t, name) {
				r.scenario(sc)
			}
			if r.sequential != want.sequential || r.concurrent != want.concurrent {
				t.Errorf("%d sequential and %d concurrent steps, want %d and %d", r.sequential, r.concurrent, want.sequential, want.concurrent)
			}
		})
	}
}

func loadScenarios(tb tester, name string) []scenario {
	tb.Helper()
	f, err := os.Open("testdata/vllm-0.32.0-scenarios-" + name + ".jsonl.gz")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		tb.Fatal(err)
	}
	var all []scenario
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		var sc scenario
		if err := json.Unmarshal(lines.Bytes(), &sc); err != nil {
			tb.Fatal(err)
		}
		all = append(all, sc)
	}
	if err := lines.Err(); err != nil {
		tb.Fatal(err)
	}
	return all
}

// replayer plays scenarios on one engine, as they were captured on one server.
type replayer struct {
	t      *testing.T
	e      *Engine
	cfg    Config
	nextID uint64
	// Block hashes of the server and of the engine must map one to one.
	toEngine   map[uint64]index.Hash
	toServer   map[index.Hash]uint64
	sequential int
	concurrent int
}

func (r *replayer) scenario(sc scenario) {
	r.t.Helper()
	if r.e == nil {
		r.cfg = Config{
			BlockSize: sc.BlockSize, NumGPUBlocks: sc.Blocks, MaxNumSeqs: 128, MaxNumBatchedTokens: sc.Budget,
			MaxModelLen: sc.MaxLen, EnablePrefixCaching: true, KVEvents: true,
		}
		r.e = mustNew(r.t, r.cfg)
	}
	r.clear()
	// So each scenario began on the server. The clear leads the batch of the next step, which here has no other event.
	p := r.play(captureStep{
		Requests: []captureRequest{{Prompts: [][]uint32{{77}}, MaxTokens: 1}},
		Results:  []captureResult{{TokenIDs: [][]uint32{{0}}}},
	}, []int{0})
	if len(p.batches) != 1 || len(p.batches[0]) != 1 || p.batches[0][0].Kind != AllBlocksCleared {
		r.t.Errorf("%s: after a reset the first step published %v", sc.Scenario, p.batches)
	}
	for _, st := range sc.Steps {
		name := sc.Scenario + "/" + st.Label
		if resets[name] {
			r.clear()
		}
		at := make([]int, len(st.Requests))
		if st.Concurrent {
			known, ok := arrivals[name]
			if !ok {
				r.t.Errorf("%s: no arrivals", name)
				continue
			}
			at = known
			r.concurrent++
		} else {
			r.sequential++
		}
		for _, diff := range r.compare(st, r.play(st, at)) {
			r.t.Errorf("%s: %s", name, diff)
		}
		if g := r.e.Stats(); g.Running != 0 || g.Waiting != 0 || g.UsedBlocks != 0 || g.Usage != 0 || r.e.Len() != 0 {
			r.t.Errorf("%s: not idle at the end: %+v", name, g)
		}
	}
}

func (r *replayer) clear() {
	r.t.Helper()
	if !r.e.ResetPrefixCache() {
		r.t.Fatal("reset refused on an idle engine")
	}
}

// played is what the engine did in one step of a scenario.
type played struct {
	batches              [][]Event
	queries, hits        int
	preemptions          int
	order                []int
	cached               []int // by request: of its last sequence
	finish               []FinishReason
	sequences, generated int
}

// expand turns a request into the sequences that the server made of it.
func (r *replayer) expand(req captureRequest, res captureResult) []Request {
	root := index.Root("tiny-qwen3", "", req.Salt, r.cfg.BlockSize)
	var prompts [][]uint32
	limit := max(req.MaxTokens, 1) // echo with max_tokens 0 runs one token
	for _, p := range req.Prompts {
		if !req.Beam {
			for range max(req.N, 1) {
				prompts = append(prompts, p)
			}
			continue
		}
		// Beam search sends the prompt, then for each further token every beam, as one-token requests. What the
		// beams hold in between was not captured; it fills no block.
		prompts = append(prompts, p)
		for i := 1; i < req.MaxTokens; i++ {
			for b := range req.N {
				prompts = append(prompts, slices.Concat(p, res.TokenIDs[b][:i]))
			}
		}
		limit = 1
	}
	requests := make([]Request, len(prompts))
	for i, p := range prompts {
		r.nextID++
		var tokens []uint32
		if !req.Beam {
			tokens = res.TokenIDs[i]
		}
		requests[i] = Request{ID: r.nextID, Prompt: p, Root: root, MaxTokens: limit, SkipCache: req.SkipCache, Next: replay(tokens)}
		if res.Finish == FinishStop {
			requests[i].StopAfter = len(tokens)
		}
	}
	return requests
}

// replay gives the captured tokens, then zeros: of an aborted stream the last ones were never read.
func replay(tokens []uint32) func(int) uint32 {
	return func(i int) uint32 {
		if i < len(tokens) {
			return tokens[i]
		}
		return 0
	}
}

// play runs a step of a scenario until the engine is idle; at says before which engine step each request comes.
func (r *replayer) play(st captureStep, at []int) played {
	r.t.Helper()
	p := played{cached: make([]int, len(at)), finish: make([]FinishReason, len(at))}
	owner := map[uint64]int{} // sequence → request
	open := make([]int, len(at))
	var abort []uint64
	added := 0
	for step := 0; ; step++ {
		for i, req := range st.Requests {
			if at[i] != step {
				continue
			}
			added++
			for _, q := range r.expand(req, st.Results[i]) {
				owner[q.ID] = i
				open[i]++
				p.sequences++
				mustAdd(r.t, r.e, q)
				if st.Results[i].Aborted {
					abort = append(abort, q.ID)
				}
			}
		}
		if _, ok := r.e.Schedule(0); !ok {
			if added == len(at) {
				return p
			}
			continue
		}
		res := r.e.Complete()
		checkInvariants(r.t, r.e)
		p.queries += res.CacheQueries
		p.hits += res.CacheHits
		p.preemptions += len(res.Preempted)
		if len(res.Events) > 0 {
			p.batches = append(p.batches, copyEvents(res.Events))
		}
		for _, o := range res.Outputs {
			p.generated++
			i := owner[o.ID]
			p.cached[i] = o.Cached
			if o.Finish != "" {
				p.finish[i] = o.Finish
				if open[i]--; open[i] == 0 {
					p.order = append(p.order, i)
				}
			}
		}
		if len(abort) > 0 && p.generated == st.Generated {
			for _, id := range abort {
				r.e.Abort(id)
			}
			p.order = append(p.order, 0)
		}
	}
}

// compare returns how an engine's run differs from the captured one.
func (r *replayer) compare(st captureStep, p played) []string {
	var diffs []string
	differ := func(format string, args ...any) { diffs = append(diffs, fmt.Sprintf(format, args...)) }
	if p.queries != st.Queries || p.hits != st.Hits {
		differ("queries %d, hits %d, want %d, %d", p.queries, p.hits, st.Queries, st.Hits)
	}
	if p.generated != st.Generated {
		differ("%d tokens generated, want %d", p.generated, st.Generated)
	}
	if p.preemptions != st.Preemptions {
		differ("%d preemptions, want %d", p.preemptions, st.Preemptions)
	}
	if !slices.Equal(p.order, st.Order) {
		differ("order of completion %v, want %v", p.order, st.Order)
	}
	for i, res := range st.Results {
		if res.Cached != nil && p.cached[i] != *res.Cached {
			differ("request %d: %d cached tokens, want %d", i, p.cached[i], *res.Cached)
		}
		if p.finish[i] != res.Finish {
			differ("request %d: finish %q, want %q", i, p.finish[i], res.Finish)
		}
	}
	got, want := p.batches, st.Batches
	if !st.Concurrent && p.sequences > 1 {
		// Several sequences of one request may come in before different engine steps, so the captured cut into
		// batches is a matter of timing; the events and their order are not.
		got, want = [][]Event{slices.Concat(got...)}, [][]captureEvent{slices.Concat(want...)}
	}
	return append(diffs, r.compareBatches(got, want)...)
}

func (r *replayer) compareBatches(got [][]Event, want [][]captureEvent) []string {
	if len(got) != len(want) {
		return []string{fmt.Sprintf("%d event batches, want %d", len(got), len(want))}
	}
	for i := range want {
		if len(got[i]) != len(want[i]) {
			return []string{fmt.Sprintf("batch %d: %d events, want %d", i, len(got[i]), len(want[i]))}
		}
		for j := range want[i] {
			if err := r.sameEvent(got[i][j], want[i][j]); err != nil {
				return []string{fmt.Sprintf("batch %d, event %d: %v", i, j, err)}
			}
		}
	}
	return nil
}

func (r *replayer) sameEvent(got Event, want captureEvent) error {
	kind, hashes := BlockStored, want.Stored
	switch {
	case want.Cleared:
		kind, hashes = AllBlocksCleared, nil
	case want.Removed != nil:
		kind, hashes = BlockRemoved, want.Removed
	}
	if got.Kind != kind || len(got.Hashes) != len(hashes) {
		return fmt.Errorf("kind %d of %d blocks, want kind %d of %d", got.Kind, len(got.Hashes), kind, len(hashes))
	}
	for i := range hashes {
		if !r.sameHash(got.Hashes[i], hashes[i]) {
			return fmt.Errorf("block %d is another one", i)
		}
	}
	if got.HasParent != (want.Parent != nil) || got.HasParent && !r.sameHash(got.Parent, *want.Parent) {
		return fmt.Errorf("another parent")
	}
	if !slices.Equal(got.Tokens, want.TokenIDs) {
		return fmt.Errorf("tokens differ")
	}
	return nil
}

// sameHash pairs two hashes when it first sees either, and from then on demands the same pairing.
func (r *replayer) sameHash(engine index.Hash, server uint64) bool {
	e, okE := r.toEngine[server]
	s, okS := r.toServer[engine]
	if !okE && !okS {
		r.toEngine[server], r.toServer[engine] = engine, server
		return true
	}
	return okE && okS && e == engine && s == server
}

func copyEvents(events []Event) []Event {
	out := slices.Clone(events)
	for i := range out {
		out[i].Hashes, out[i].Tokens = slices.Clone(out[i].Hashes), slices.Clone(out[i].Tokens)
	}
	return out
}
