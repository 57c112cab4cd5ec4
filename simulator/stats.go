package simulator

import (
	"sync"
	"time"

	"github.com/inferrail/inferrail/simulator/engine"
)

// histogram counts observations in buckets of inclusive upper bounds, the last one being infinite.
type histogram struct {
	bounds []float64
	counts []uint64 // one more than bounds; not cumulative
	sum    float64
	total  uint64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(x float64) {
	i := 0
	for i < len(h.bounds) && x > h.bounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += x
	h.total++
}

// Buckets of vLLM's histograms (v1/metrics/loggers.py, PrometheusStatLogger).
var (
	iterationBounds = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
	paramsNBounds   = []float64{1, 2, 5, 10, 20}
	preemptBounds   = []float64{1, 2, 3, 4, 5, 10, 20}
	ttftBounds      = []float64{
		.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
	}
	tokenBounds   = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds = []float64{
		.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680,
	}
)

// lengthBounds are 1, 2, 5, 10, ... up to the context length (build_1_2_5_buckets).
func lengthBounds(maxModelLen int) []float64 {
	var out []float64
	for scale := 1; scale <= maxModelLen; scale *= 10 {
		for _, m := range []int{1, 2, 5} {
			if m*scale <= maxModelLen {
				out = append(out, float64(m*scale))
			}
		}
	}
	return out
}

// stats are an engine's metrics. They are updated when a step completes and read by the metrics page.
type stats struct {
	created time.Time

	mu               sync.Mutex
	running, waiting int
	usage            float64

	queries, hits             uint64
	preemptions               uint64
	prompt, computed, cached  uint64
	generated                 uint64
	stopped, cutOff, errors   uint64
	promptLen, generationLen  histogram
	iteration                 histogram
	maxGeneration, paramsN    histogram
	paramsMax                 histogram
	ttft, interToken, perTok  histogram
	e2e, queue, inference     histogram
	prefill, decode           histogram
	preemptsPer, prefillKVLen histogram
}

func newStats(maxModelLen int, now time.Time) *stats {
	lengths := lengthBounds(maxModelLen)
	return &stats{
		created:   now,
		promptLen: newHistogram(lengths), generationLen: newHistogram(lengths),
		iteration:     newHistogram(iterationBounds),
		maxGeneration: newHistogram(lengths), paramsN: newHistogram(paramsNBounds), paramsMax: newHistogram(lengths),
		ttft: newHistogram(ttftBounds), interToken: newHistogram(tokenBounds), perTok: newHistogram(tokenBounds),
		e2e: newHistogram(requestBounds), queue: newHistogram(requestBounds), inference: newHistogram(requestBounds),
		prefill: newHistogram(requestBounds), decode: newHistogram(requestBounds),
		preemptsPer: newHistogram(preemptBounds), prefillKVLen: newHistogram(lengths),
	}
}

// gauges sets the values of the last step.
func (s *stats) gauges(st engine.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setGauges(st)
}

func (s *stats) setGauges(st engine.Stats) {
	s.running, s.waiting, s.usage = st.Running, st.Waiting, st.Usage
}

// step counts what a step did. live are the sequences that the driver still holds.
func (s *stats) step(res *engine.StepResult, st engine.Stats, live map[uint64]*sequence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setGauges(st)
	s.queries += uint64(res.CacheQueries)
	s.hits += uint64(res.CacheHits)
	if len(res.Outputs) == 0 {
		return
	}
	tokens := len(res.Outputs) // prompt tokens computed count in the step that ends their prefill
	for i := range res.Outputs {
		out := &res.Outputs[i]
		seq := live[out.ID]
		s.generated++
		if seq == nil {
			continue
		}
		if out.First {
			tokens += len(seq.request.Prompt) - out.Cached
			s.first(seq, out)
		} else {
			s.interToken.observe((res.End - seq.lastToken).Seconds())
		}
		seq.lastToken = res.End
		s.preemptions += uint64(out.Preempts - seq.preempts)
		seq.preempts = out.Preempts
		if out.Finish != "" {
			s.finished(seq, out)
		}
	}
	s.iteration.observe(float64(tokens))
}

func (s *stats) first(seq *sequence, out *engine.Output) {
	prompt := len(seq.request.Prompt)
	s.prompt += uint64(prompt)
	s.cached += uint64(out.Cached)
	s.computed += uint64(prompt - out.Cached)
	s.ttft.observe((out.Times.FirstToken - out.Times.Arrival).Seconds())
}

func (s *stats) finished(seq *sequence, out *engine.Output) {
	switch out.Finish {
	case engine.FinishStop:
		s.stopped++
	case engine.FinishLength:
		s.cutOff++
	}
	n, t := out.Index+1, out.Times
	s.promptLen.observe(float64(len(seq.request.Prompt)))
	s.generationLen.observe(float64(n))
	s.paramsMax.observe(float64(seq.request.MaxTokens))
	decode := (t.LastToken - t.FirstToken).Seconds()
	perToken := 0.0
	if n > 1 {
		perToken = decode / float64(n-1)
	}
	s.perTok.observe(perToken)
	s.e2e.observe((t.LastToken - t.Arrival).Seconds())
	s.queue.observe((t.Scheduled - t.Arrival).Seconds())
	s.inference.observe((t.LastToken - t.Scheduled).Seconds())
	s.prefill.observe((t.FirstToken - t.Scheduled).Seconds())
	s.decode.observe(decode)
	s.preemptsPer.observe(float64(out.Preempts))
	s.prefillKVLen.observe(float64(len(seq.request.Prompt) - out.Cached))
	g := seq.group
	g.longest = max(g.longest, n)
	if g.left--; g.left == 0 {
		s.maxGeneration.observe(float64(g.longest))
		s.paramsN.observe(float64(g.n))
	}
}
