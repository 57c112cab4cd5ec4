package simulator

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// label is one label of a sample.
type label struct{ name, value string }

// page writes the Prometheus text format as Python's prometheus_client does: floats in its notation, labels sorted,
// a family of _created gauges after each family of counters or histograms.
type page struct {
	buf     []byte
	created float64
	base    []label // engine and model_name
}

func (p *page) head(name, kind, help string) {
	p.buf = append(p.buf, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

// sample writes one line; labels must be sorted by name.
func (p *page) sample(name string, labels []label, v float64) {
	p.buf = append(p.buf, name...)
	for i, l := range labels {
		if i == 0 {
			p.buf = append(p.buf, '{')
		} else {
			p.buf = append(p.buf, ',')
		}
		p.buf = append(p.buf, l.name...)
		p.buf = append(p.buf, '=', '"')
		p.buf = append(p.buf, labelEscaper.Replace(l.value)...)
		p.buf = append(p.buf, '"')
	}
	if len(labels) > 0 {
		p.buf = append(p.buf, '}')
	}
	p.buf = append(p.buf, ' ')
	p.buf = appendFloat(p.buf, v)
	p.buf = append(p.buf, '\n')
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// appendFloat writes a float as prometheus_client's floatToGoString: Python's repr, but with an exponent from a
// million on.
func appendFloat(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, "+Inf"...)
	case math.IsInf(f, -1):
		return append(dst, "-Inf"...)
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	}
	s := pyFloat(f)
	dot := strings.IndexByte(s, '.')
	if f <= 0 || dot <= 6 {
		return append(dst, s...)
	}
	mantissa := strings.TrimRight(s[:1]+"."+s[1:dot]+s[dot+1:], "0.")
	return append(dst, mantissa+"e+0"+strconv.Itoa(dot-1)...)
}

// insert adds a label to the base labels, which are sorted.
func (p *page) with(extra ...label) []label {
	out := append([]label(nil), p.base...)
	for _, l := range extra {
		i := 0
		for i < len(out) && out[i].name < l.name {
			i++
		}
		out = append(out[:i], append([]label{l}, out[i:]...)...)
	}
	return out
}

func (p *page) gauge(name, help string, v float64) {
	p.head(name, "gauge", help)
	p.sample(name, p.base, v)
}

// labelled is one sample of a family with a label of its own.
type labelled struct {
	value string
	v     float64
}

func (p *page) gauges(name, help, labelName string, samples ...labelled) {
	p.head(name, "gauge", help)
	for _, s := range samples {
		p.sample(name, p.with(label{labelName, s.value}), s.v)
	}
}

func (p *page) counter(name, help string, v float64) {
	p.head(name+"_total", "counter", help)
	p.sample(name+"_total", p.base, v)
	p.head(name+"_created", "gauge", help)
	p.sample(name+"_created", p.base, p.created)
}

func (p *page) counters(name, help, labelName string, samples ...labelled) {
	p.head(name+"_total", "counter", help)
	for _, s := range samples {
		p.sample(name+"_total", p.with(label{labelName, s.value}), s.v)
	}
	p.head(name+"_created", "gauge", help)
	for _, s := range samples {
		p.sample(name+"_created", p.with(label{labelName, s.value}), p.created)
	}
}

func (p *page) histogram(name, help string, h *histogram) {
	p.head(name, "histogram", help)
	sum := uint64(0)
	for i, n := range h.counts {
		bound := math.Inf(1)
		if i < len(h.bounds) {
			bound = h.bounds[i]
		}
		sum += n
		p.sample(name+"_bucket", p.with(label{"le", string(appendFloat(nil, bound))}), float64(sum))
	}
	p.sample(name+"_count", p.base, float64(h.total))
	p.sample(name+"_sum", p.base, h.sum)
	p.head(name+"_created", "gauge", help)
	p.sample(name+"_created", p.base, p.created)
}

func unixSeconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// metricsPage is the body of GET /metrics: the families of vLLM 0.32.0 about load, cache and latency in its order.
// Families of the HTTP framework and the Python runtime are left out.
func (s *Simulator) metricsPage(st *stats) []byte {
	st.mu.Lock()
	defer st.mu.Unlock()
	p := &page{
		buf: make([]byte, 0, 1<<16), created: unixSeconds(st.created),
		base: []label{{"engine", "0"}, {"model_name", s.servedName()}},
	}
	const startHelp = "Start time of the process since unix epoch in seconds."
	p.head("process_start_time_seconds", "gauge", startHelp)
	p.sample("process_start_time_seconds", nil, math.Floor(p.created*100)/100)
	const perf = " (for Model Flops Utilization calculations)."
	p.counter("vllm:estimated_flops_per_gpu", "Estimated number of floating point operations per GPU"+perf, 0)
	p.counter("vllm:estimated_read_bytes_per_gpu", "Estimated number of bytes read from memory per GPU"+perf, 0)
	p.counter("vllm:estimated_write_bytes_per_gpu", "Estimated number of bytes written to memory per GPU"+perf, 0)
	st.loadFamilies(p)
	st.cacheFamilies(p)
	st.tokenFamilies(p)
	st.lengthFamilies(p)
	st.latencyFamilies(p)
	p.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	p.sample("vllm:cache_config_info", s.cacheConfig(), 1)
	return p.buf
}

func (s *stats) loadFamilies(p *page) {
	p.gauge("vllm:num_requests_running", "Number of requests in model execution batches.", float64(s.running))
	p.gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", float64(s.waiting))
	p.gauges("vllm:num_requests_waiting_by_reason", "Number of waiting requests by reason. Reason labels: 'capacity' = "+
		"waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, "+
		"blocked status). Sum of all reasons equals vllm:num_requests_waiting.", "reason",
		labelled{"capacity", float64(s.waiting)}, labelled{"deferred", 0})
	p.gauges("vllm:engine_sleep_state", "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine "+
		"is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.", "sleep_state",
		labelled{"awake", 1}, labelled{"weights_offloaded", 0}, labelled{"discard_all", 0})
	p.gauge("vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", s.usage)
}

func (s *stats) cacheFamilies(p *page) {
	p.counter("vllm:prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens.",
		float64(s.queries))
	p.counter("vllm:prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", float64(s.hits))
	p.counter("vllm:external_prefix_cache_queries", "External prefix cache queries from KV connector cross-instance "+
		"cache sharing, in terms of number of queried tokens.", 0)
	p.counter("vllm:external_prefix_cache_hits", "External prefix cache hits from KV connector cross-instance cache "+
		"sharing, in terms of number of cached tokens.", 0)
	p.counter("vllm:mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items.", 0)
	p.counter("vllm:mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items.", 0)
	p.counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", float64(s.preemptions))
}

func (s *stats) tokenFamilies(p *page) {
	p.counter("vllm:prompt_tokens", "Number of prefill tokens processed.", float64(s.prompt))
	p.counters("vllm:prompt_tokens_by_source", "Number of prompt tokens by source.", "source",
		labelled{"local_compute", float64(s.computed)}, labelled{"local_cache_hit", float64(s.cached)},
		labelled{"external_kv_transfer", 0})
	p.counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", float64(s.cached))
	p.counters("vllm:prompt_tokens_cached_by_source", "Prefix-cache hit tokens by the cache tier that supplied them: "+
		"device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or "+
		"external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
		"source", labelled{"device", float64(s.hits)}, labelled{"host", 0}, labelled{"p2p", 0}, labelled{"disk", 0},
		labelled{"external_unspecified", 0})
	p.counter("vllm:generation_tokens", "Number of generation tokens processed.", float64(s.generated))
	p.counters("vllm:request_success", "Count of successfully processed requests.", "finished_reason",
		labelled{"stop", float64(s.stopped)}, labelled{"length", float64(s.cutOff)}, labelled{"abort", 0},
		labelled{"error", float64(s.errors)}, labelled{"repetition", 0})
	base := p.base
	p.base = base[1:] // this family has no engine label
	p.counters("vllm:admission_rejections", "Number of admission attempts rejected by a queue limit, by reason.", "reason",
		labelled{"max_num_queued_reqs", 0}, labelled{"max_num_queued_tokens", 0})
	p.base = base
}

func (s *stats) lengthFamilies(p *page) {
	p.histogram("vllm:request_prompt_tokens", "Number of prefill tokens processed.", &s.promptLen)
	p.histogram("vllm:request_generation_tokens", "Number of generation tokens processed.", &s.generationLen)
	p.histogram("vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", &s.iteration)
	p.histogram("vllm:request_max_num_generation_tokens",
		"Histogram of maximum number of requested generation tokens.", &s.maxGeneration)
	p.histogram("vllm:request_params_n", "Histogram of the n request parameter.", &s.paramsN)
	p.histogram("vllm:request_params_max_tokens", "Histogram of the max_tokens request parameter.", &s.paramsMax)
}

func (s *stats) latencyFamilies(p *page) {
	p.histogram("vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &s.ttft)
	p.histogram("vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &s.interToken)
	p.histogram("vllm:request_time_per_output_token_seconds",
		"Histogram of time_per_output_token_seconds per request.", &s.perTok)
	p.histogram("vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &s.e2e)
	p.histogram("vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &s.queue)
	p.histogram("vllm:request_inference_time_seconds",
		"Histogram of time spent in RUNNING phase for request.", &s.inference)
	p.histogram("vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", &s.prefill)
	p.histogram("vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", &s.decode)
	p.histogram("vllm:request_num_preemptions",
		"Histogram of the number of times a request was preempted.", &s.preemptsPer)
	p.histogram("vllm:request_prefill_kv_computed_tokens",
		"Histogram of new KV tokens computed during prefill (excluding cached tokens).", &s.prefillKVLen)
}

// cacheConfig are the labels of vllm:cache_config_info: vLLM's CacheConfig with what this mock sets in it.
func (s *Simulator) cacheConfig() []label {
	block, blocks := strconv.Itoa(s.BlockSize), strconv.Itoa(s.NumGPUBlocksOverride)
	tokens := s.BlockSize * s.NumGPUBlocksOverride
	pyBool := "False"
	if s.prefixCaching() {
		pyBool = "True"
	}
	return []label{
		{"_block_size_resolved", "True"}, {"block_size", block}, {"cache_dtype", "auto"},
		{"cache_hit_alignment_tokens", "None"}, {"effective_attention_block_size", block},
		{"enable_mamba_shared_prefix_checkpoint", "False"}, {"enable_prefix_caching", pyBool}, {"engine", "0"},
		{"gpu_memory_utilization", "0.92"}, {"hash_block_size", "None"}, {"is_attention_free", "False"},
		{"kv_cache_dtype_skip_layers", "[]"}, {"kv_cache_layout", "None"},
		{"kv_cache_max_concurrency", pyFloat(float64(tokens) / float64(s.MaxModelLen))},
		{"kv_cache_memory_bytes", "None"}, {"kv_cache_size_tokens", strconv.Itoa(tokens)},
		{"kv_offloading_backend", "native"}, {"kv_offloading_size", "None"}, {"kv_sharing_fast_prefill", "False"},
		{"mamba_block_size", "None"}, {"mamba_cache_dtype", "auto"}, {"mamba_cache_mode", "none"},
		{"mamba_page_size_padded", "None"}, {"mamba_ssm_cache_dtype", "float32"}, {"num_cpu_blocks", "None"},
		{"num_gpu_blocks", blocks}, {"num_gpu_blocks_override", blocks}, {"prefix_cache_retention_interval", "0"},
		{"prefix_caching_hash_algo", "sha256"}, {"prefix_match_unit", "None"}, {"replayssm_buffer_len", "16"},
		{"skip_page_size_padded", "None"}, {"sliding_window", "None"}, {"swa_bounded_replay", "True"},
		{"use_kda_recoverssm", "False"}, {"use_replayssm", "False"}, {"user_specified_block_size", "True"},
	}
}
