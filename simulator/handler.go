package simulator

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/inferrail/inferrail/tokenize"
)

// vllmVersion is the version that the simulator answers as.
const vllmVersion = "0.32.0"

func init() {
	caddy.RegisterModule(&Simulator{})
}

// Simulator answers like a vLLM server (version 0.32.0) that has one engine, without a model: text is made up, time is
// modelled. Scheduling, the block pool and the prefix cache are those of package engine. It serves chat completions and
// completions (streamed and not), the model list, health, version, load, the metrics page and the reset of the prefix
// cache; every other path is answered 404, so it belongs in a site of its own.
//
// Prompts cost a·u + b·u·(c + u/2) + d for u tokens to compute after c cached ones; a step that decodes n sequences
// costs decode_token_ms + decode_seq_us·(n−1) on top.
//
// An answer's text is a function of the prompt, so equal prompts give equal texts. A request that sets max_tokens gets
// that many tokens; one that does not gets 16 to 256.
//
// The engine, its cache and its metrics outlive a reload that changes none of the settings below but
// enable_prompt_tokens_details.
type Simulator struct {
	// The model's path or name on Hugging Face: the root of the model list's entries, and the model that block hashes
	// are made from. Required.
	Model string `json:"model,omitempty"`

	// Names that clients may ask for; the first one is in answers and metrics. Default: the model.
	ServedModelName []string `json:"served_model_name,omitempty"`

	// Name of the engine. Simulators with equal settings and equal instances share one engine. Default: the listen
	// addresses of the server that the handler belongs to, so simulators on different ports are different engines.
	Instance string `json:"instance,omitempty"`

	// Turns requests into tokens, and tokens into text. Default: the simulator's own tokenizer, which the router
	// knows as sim.
	TokenizerRaw json.RawMessage `json:"tokenizer,omitempty" caddy:"namespace=inferrail.tokenizers inline_key=name"`

	// Tokens in a block of the KV cache. Default: 16; at least 1.
	BlockSize int `json:"block_size,omitempty"`

	// Blocks in the KV cache. One of them is never used, as in vLLM. Default: 4096; there must be room for
	// max_model_len tokens.
	NumGPUBlocksOverride int `json:"num_gpu_blocks_override,omitempty"`

	// Sequences that run at once. Default: 256; at least 1.
	MaxNumSeqs int `json:"max_num_seqs,omitempty"`

	// Tokens that one step may compute; longer prompts are computed in chunks. Default: 2048; at least max_num_seqs.
	MaxNumBatchedTokens int `json:"max_num_batched_tokens,omitempty"`

	// Tokens of a prompt and its answer together. Default: 32768; at least 1.
	MaxModelLen int `json:"max_model_len,omitempty"`

	// Whether blocks are kept for later prompts with the same beginning. Default: true.
	EnablePrefixCaching *bool `json:"enable_prefix_caching,omitempty"`

	// Whether usage tells how many prompt tokens came from the cache. Default: false.
	EnablePromptTokensDetails bool `json:"enable_prompt_tokens_details,omitempty"`

	// Order in which waiting requests are taken: fcfs (first come, first served) or priority (the request's priority,
	// smaller first). Default: fcfs.
	SchedulingPolicy string `json:"scheduling_policy,omitempty"`

	// Time to compute a prompt token, in microseconds (a). Default: 100; not negative.
	PrefillTokenUS *float64 `json:"prefill_token_us,omitempty"`

	// Time for each pair of a prompt token and a token it attends to, in nanoseconds (b). Default: 3.3; not negative.
	PrefillPairNS *float64 `json:"prefill_pair_ns,omitempty"`

	// Fixed time of a prompt, in milliseconds (d). Default: 5; not negative.
	PrefillFixedMS *float64 `json:"prefill_fixed_ms,omitempty"`

	// Time of a decode step with one sequence, in milliseconds. Default: 20; not negative.
	DecodeTokenMS *float64 `json:"decode_token_ms,omitempty"`

	// Time that each further sequence adds to a decode step, in microseconds. Default: 100; not negative.
	DecodeSeqUS *float64 `json:"decode_seq_us,omitempty"`

	// Takes all times as zero. Default: false.
	ZeroLatency bool `json:"zero_latency,omitempty"`

	tokenizer  *tokenize.Model
	vocabulary int // ids below it are known; 0: any
	generator  *generator
	engine     *pooled
	poolKey    string
	held       bool // this configuration holds a reference to the engine
	print      string
}

// CaddyModule returns the Caddy module information.
func (*Simulator) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.vllm_simulator",
		New: func() caddy.Module { return new(Simulator) },
	}
}

// Provision fills in defaults, loads the tokenizer and joins the engine.
func (s *Simulator) Provision(ctx caddy.Context) error {
	s.setDefaults()
	if s.Instance == "" {
		if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && srv != nil {
			s.Instance = listenInstance(srv.Listen)
		}
	}
	if err := s.checkSettings(); err != nil {
		return err
	}
	if err := s.loadTokenizer(ctx); err != nil {
		return err
	}
	s.print = s.fingerprint()
	key, err := s.key()
	if err != nil {
		return err
	}
	s.poolKey = key
	if s.engine, err = s.acquire(); err != nil {
		return fmt.Errorf("vllm_simulator: making the engine: %w", err)
	}
	s.held = true
	return nil
}

func (s *Simulator) setDefaults() {
	if len(s.ServedModelName) == 0 && s.Model != "" {
		s.ServedModelName = []string{s.Model}
	}
	for _, d := range []struct {
		field *int
		value int
	}{
		{&s.BlockSize, 16}, {&s.NumGPUBlocksOverride, 4096}, {&s.MaxNumSeqs, 256}, {&s.MaxNumBatchedTokens, 2048},
		{&s.MaxModelLen, 32768},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for _, d := range []struct {
		field **float64
		value float64
	}{
		{&s.PrefillTokenUS, 100}, {&s.PrefillPairNS, 3.3}, {&s.PrefillFixedMS, 5}, {&s.DecodeTokenMS, 20},
		{&s.DecodeSeqUS, 100},
	} {
		if *d.field == nil {
			*d.field = &d.value
		}
	}
	if s.EnablePrefixCaching == nil {
		on := true
		s.EnablePrefixCaching = &on
	}
	if s.SchedulingPolicy == "" {
		s.SchedulingPolicy = "fcfs"
	}
}

// modelProvider is what a tokenizer module must offer.
type modelProvider interface{ Model() *tokenize.Model }

func (s *Simulator) loadTokenizer(ctx caddy.Context) error {
	s.tokenizer = tokenize.NewSim()
	if s.TokenizerRaw != nil {
		mod, err := ctx.LoadModule(s, "TokenizerRaw")
		if err != nil {
			return fmt.Errorf("vllm_simulator: loading the tokenizer: %w", err)
		}
		provider, ok := mod.(modelProvider)
		if !ok {
			return fmt.Errorf("vllm_simulator: tokenizer %T gives no model", mod)
		}
		s.tokenizer = provider.Model()
	}
	return s.useTokenizer()
}

// useTokenizer prepares what depends on the tokenizer.
func (s *Simulator) useTokenizer() error {
	if sized, ok := s.tokenizer.Tokenizer().(interface{ VocabSize() int }); ok {
		s.vocabulary = sized.VocabSize()
	}
	var err error
	if s.generator, err = newGenerator(s.tokenizer); err != nil {
		return fmt.Errorf("vllm_simulator: tokenizer %q: %w", s.tokenizer.Name(), err)
	}
	return nil
}

// Bounds that keep the engine's own memory in hand: a block costs some 100 bytes there.
const (
	maxBlocks = 1 << 24
	maxTokens = 1 << 24
)

// checkSettings collects all faults of the settings. It runs in Provision, before the engine is made from them.
func (s *Simulator) checkSettings() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("vllm_simulator: "+format, args...)) }
	if s.Model == "" {
		fault("model is missing")
	}
	for _, name := range s.ServedModelName {
		if name == "" {
			fault("served_model_name %q is empty", name)
		}
	}
	for _, f := range []struct {
		name  string
		value int
		most  int
	}{
		{"block_size", s.BlockSize, 1 << 16}, {"num_gpu_blocks_override", s.NumGPUBlocksOverride, maxBlocks},
		{"max_num_seqs", s.MaxNumSeqs, 1 << 20}, {"max_num_batched_tokens", s.MaxNumBatchedTokens, maxTokens},
		{"max_model_len", s.MaxModelLen, maxTokens},
	} {
		if f.value < 1 || f.value > f.most {
			fault("%s %d is not between 1 and %d", f.name, f.value, f.most)
		}
	}
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"prefill_token_us", *s.PrefillTokenUS}, {"prefill_pair_ns", *s.PrefillPairNS},
		{"prefill_fixed_ms", *s.PrefillFixedMS}, {"decode_token_ms", *s.DecodeTokenMS}, {"decode_seq_us", *s.DecodeSeqUS},
	} {
		if !(f.value >= 0 && f.value <= math.MaxInt32) {
			fault("%s %v is not between 0 and %d", f.name, f.value, math.MaxInt32)
		}
	}
	if s.SchedulingPolicy != "fcfs" && s.SchedulingPolicy != "priority" {
		fault("scheduling_policy %q is neither fcfs nor priority", s.SchedulingPolicy)
	}
	if len(errs) == 0 {
		if s.MaxNumBatchedTokens < s.MaxNumSeqs {
			fault("max_num_batched_tokens %d is below max_num_seqs %d", s.MaxNumBatchedTokens, s.MaxNumSeqs)
		}
		if need := (s.MaxModelLen + s.BlockSize - 1) / s.BlockSize; need > s.NumGPUBlocksOverride-1 {
			fault("max_model_len %d needs %d blocks of %d tokens, num_gpu_blocks_override %d leaves %d",
				s.MaxModelLen, need, s.BlockSize, s.NumGPUBlocksOverride, s.NumGPUBlocksOverride-1)
		}
	}
	return errors.Join(errs...)
}

// Cleanup gives up the reference to the engine.
func (s *Simulator) Cleanup() error {
	if s.held {
		s.held = false
		s.release()
	}
	return nil
}

func (s *Simulator) servedName() string  { return s.ServedModelName[0] }
func (s *Simulator) prefixCaching() bool { return *s.EnablePrefixCaching }

// ServeHTTP answers every request; next is never called.
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	h := w.Header()
	h.Set("Server", "uvicorn")
	h.Set("Vary", "Origin")
	return s.route(w, r)
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Simulator)(nil)
	_ caddy.CleanerUpper          = (*Simulator)(nil)
	_ caddyhttp.MiddlewareHandler = (*Simulator)(nil)
)
