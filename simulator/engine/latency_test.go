package engine

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// gpu approximates an 8B model on one 24 GB GPU.
var gpu = Latency{
	PrefillToken: 100 * time.Microsecond,
	PrefillPair:  3.3,
	PrefillFixed: 5 * time.Millisecond,
	DecodeToken:  20 * time.Millisecond,
	DecodeSeq:    100 * time.Microsecond,
}

func drawLatency(t *rapid.T) Latency {
	return Latency{
		PrefillToken: time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "a")),
		PrefillPair:  rapid.Float64Range(0, 50).Draw(t, "b"),
		PrefillFixed: time.Duration(rapid.Int64Range(0, 1e7).Draw(t, "d")),
		DecodeToken:  time.Duration(rapid.Int64Range(0, 1e8).Draw(t, "decode")),
		DecodeSeq:    time.Duration(rapid.Int64Range(0, 1e6).Draw(t, "seq")),
	}
}

func TestPrefillIsTheFormula(t *testing.T) {
	for _, c := range []struct {
		uncached, cached int
		want             time.Duration
	}{
		{0, 0, 0},
		{0, 4096, 0},
		{1, 0, 5100002 * time.Nanosecond}, // 0.1 ms + 3.3·½ ns + 5 ms, rounded
		{1000, 0, 100*time.Millisecond + 1650*time.Microsecond + 5*time.Millisecond},
		{1000, 2000, 100*time.Millisecond + 8250*time.Microsecond + 5*time.Millisecond},
	} {
		if got := gpu.Prefill(c.uncached, c.cached); got != c.want {
			t.Errorf("P(%d, %d) = %v, want %v", c.uncached, c.cached, got, c.want)
		}
	}
	if got, want := gpu.Decode(256), 20*time.Millisecond+255*100*time.Microsecond; got != want {
		t.Errorf("a decode step of 256 takes %v, want %v", got, want)
	}
	if got := gpu.Decode(0); got != 0 {
		t.Errorf("a decode step of none takes %v", got)
	}
}

func TestChunksAddUpToPrefill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := drawLatency(t)
		cached := rapid.IntRange(0, 100_000).Draw(t, "cached")
		end := cached + rapid.IntRange(1, 100_000).Draw(t, "uncached")
		var sum time.Duration
		for from := cached; from < end; {
			to := min(end, from+rapid.IntRange(1, 30_000).Draw(t, "chunk"))
			cost := l.chunk(from, to, cached)
			if cost < 0 {
				t.Fatalf("chunk [%d, %d) costs %v", from, to, cost)
			}
			sum += cost
			from = to
		}
		if want := l.Prefill(end-cached, cached); sum != want {
			t.Fatalf("chunks add up to %v, want %v", sum, want)
		}
	})
}

// An idle engine's time to first token is P, and each further token takes one decode step, however the prompt
// is cut into chunks.
func TestIdleEngineTakesExactlyTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			BlockSize: rapid.IntRange(1, 64).Draw(t, "block size"), MaxNumSeqs: 1, MaxModelLen: 3000,
			MaxNumBatchedTokens: rapid.IntRange(1, 4000).Draw(t, "budget"), EnablePrefixCaching: true, Latency: drawLatency(t),
		}
		cfg.NumGPUBlocks = 2*blocksFor(cfg.MaxModelLen, cfg.BlockSize) + 2
		e := mustNew(t, cfg)
		// The first request warms the cache for the second, whose prompt continues it.
		now := time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "now"))
		prompt := counting(rapid.IntRange(1, 1400).Draw(t, "first"))
		for id := range uint64(2) {
			outputs := rapid.IntRange(1, 20).Draw(t, "outputs")
			mustAdd(t, e, Request{ID: id, Prompt: prompt, MaxTokens: outputs, Arrival: now, Next: zeros})
			out := last(t, drain(t, e, now))
			want := cfg.Latency.Prefill(len(prompt)-out.Cached, out.Cached)
			if ttft := out.Times.FirstToken - now; ttft != want {
				t.Fatalf("time to first token %v, want P(%d, %d) = %v", ttft, len(prompt)-out.Cached, out.Cached, want)
			}
			if got, want := out.Times.LastToken-out.Times.FirstToken, time.Duration(outputs-1)*cfg.Latency.DecodeToken; got != want {
				t.Fatalf("%d tokens after the first took %v, want %v", outputs-1, got, want)
			}
			now = out.Times.LastToken + time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "gap"))
			prompt = counting(len(prompt) + rapid.IntRange(0, 1400).Draw(t, "more"))
		}
	})
}

func TestDecodeStretchesWithBatchAndPrefill(t *testing.T) {
	e := mustNew(t, Config{
		BlockSize: 16, NumGPUBlocks: 4096, MaxNumSeqs: 64, MaxNumBatchedTokens: 2048, MaxModelLen: 8192, Latency: gpu,
	})
	for n := 1; n <= 40; n++ {
		mustAdd(t, e, Request{ID: uint64(n), Prompt: counting(10), MaxTokens: 5000, Next: zeros})
		step(t, e) // admits
		if r := step(t, e); r.End-r.Start != gpu.Decode(n) {
			t.Fatalf("%d sequences decode in %v, want %v", n, r.End-r.Start, gpu.Decode(n))
		}
	}
	mustAdd(t, e, Request{ID: 100, Prompt: counting(3000), MaxTokens: 1, Next: zeros})
	first, second := step(t, e), step(t, e)
	if first.Scheduled != 2048 || second.Scheduled != 40+3000-2008 {
		t.Fatalf("chunked into %d and %d tokens", first.Scheduled, second.Scheduled)
	}
	total := first.End - first.Start + second.End - second.Start
	if want := 2*gpu.Decode(40) + gpu.Prefill(3000, 0); total != want {
		t.Fatalf("two decode steps with a prefill took %v, want %v", total, want)
	}
}

// More requests in front of one, all sharing nothing, never let it get its first token earlier.
func TestLoadNeverLowersTTFT(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			BlockSize: 8, MaxNumSeqs: rapid.IntRange(1, 8).Draw(t, "seqs"), MaxModelLen: 256,
			MaxNumBatchedTokens: rapid.IntRange(8, 128).Draw(t, "budget"), EnablePrefixCaching: true, Latency: drawLatency(t),
		}
		cfg.NumGPUBlocks = cfg.MaxNumSeqs*blocksFor(cfg.MaxModelLen, cfg.BlockSize) + 1 // none has to wait for blocks
		load := make([]Request, rapid.IntRange(1, 6).Draw(t, "load"))
		for i := range load {
			n := rapid.IntRange(1, 200).Draw(t, "prompt")
			load[i] = Request{ID: uint64(i), Prompt: stream(i+1, n), MaxTokens: rapid.IntRange(1, 50).Draw(t, "outputs"), Next: zeros}
		}
		prompt := stream(100, rapid.IntRange(1, 200).Draw(t, "prompt"))
		before := time.Duration(math.MinInt64)
		for k := range len(load) + 1 {
			e := mustNew(t, cfg)
			for _, r := range load[:k] {
				mustAdd(t, e, r)
			}
			mustAdd(t, e, Request{ID: 100, Prompt: prompt, MaxTokens: 1, Next: zeros})
			var ttft time.Duration
			for _, o := range drain(t, e, 0) {
				if o.ID == 100 {
					ttft = o.Times.FirstToken
				}
			}
			if ttft < before {
				t.Fatalf("behind %d requests the first token comes at %v, behind one less at %v", k, ttft, before)
			}
			before = ttft
		}
	})
}
