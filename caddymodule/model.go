package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"

	"github.com/inferrail/inferrail/index"
	"github.com/inferrail/inferrail/policies"
	"github.com/inferrail/inferrail/tokenize"
)

// Defaults of a model's settings.
const (
	defaultBlockSize      = 16
	defaultCapacityBlocks = 16384
)

// Model is a model that the fleet serves: the name its engines know it by, what else clients may call it, and how its
// prompts become tokens and blocks.
type Model struct {
	// The name that the engines serve the model under, as in their /v1/models. Required.
	Name string `json:"name,omitempty"`

	// Other names that clients may use. The alias in a request's body is replaced by the model's name before the request
	// is sent to an engine; no other byte changes.
	Aliases []string `json:"aliases,omitempty"`

	// How prompts become token ids: `huggingface` for a directory with tokenizer.json, `sim` for the simulator's own
	// tokenizer. Without one, requests are routed on load alone, prompts estimated at four bytes of body per token.
	TokenizerRaw json.RawMessage `json:"tokenizer,omitempty" caddy:"namespace=inferrail.tokenizers inline_key=name"`

	// Tokens per KV block; must equal the engines' `--block-size`, which the router compares with what they report.
	// Default: 16. At least 1.
	BlockSize int `json:"block_size,omitempty"`

	// The size of one replica's KV cache in blocks, for engines that do not report it. Default: what the engine reports.
	KVCapacityBlocks int `json:"kv_capacity_blocks,omitempty"`

	// The size assumed while an engine has not reported one. Default: 16384.
	DefaultCapacityBlocks int `json:"default_capacity_blocks,omitempty"`

	// How long the engines take to compute a prompt. Default: an 8B model on one GPU of 24 GB.
	CostModel *Cost `json:"cost_model,omitempty"`

	tokens *tokenize.Model
	cost   policies.CostModelConfig
	salt   string

	mismatch atomic.Bool // an engine has counted a prompt differently, and that was logged
}

// Cost holds the parameters of P(u, c) = a·u + b·u·(c + u/2) + d, the time in which an idle engine computes u uncached
// prompt tokens after c cached ones.
type Cost struct {
	// a: seconds per uncached token. Default: 0.0001. Not negative.
	PrefillTokenSecs *float64 `json:"prefill_token_secs,omitempty"`
	// b: seconds per pair of an uncached and an earlier token. Default: 3.3e-9. Not negative.
	PrefillPairSecs *float64 `json:"prefill_pair_secs,omitempty"`
	// d: seconds that every prefill takes. Default: 0.005. Not negative.
	PrefillFixedSecs *float64 `json:"prefill_fixed_secs,omitempty"`
}

// TokenizerModule is what a guest module of `inferrail.tokenizers` must be.
type TokenizerModule interface {
	// Model returns the way from requests to token ids; it is called after Provision and must not be nil.
	Model() *tokenize.Model
}

func (m *Model) provision(ctx caddy.Context) error {
	if m.BlockSize == 0 {
		m.BlockSize = defaultBlockSize
	}
	if m.DefaultCapacityBlocks == 0 {
		m.DefaultCapacityBlocks = defaultCapacityBlocks
	}
	m.cost = m.CostModel.config()
	m.salt = m.Name
	if m.TokenizerRaw == nil {
		return nil
	}
	mod, err := ctx.LoadModule(m, "TokenizerRaw")
	if err != nil {
		return fmt.Errorf("tokenizer: %w", err)
	}
	t, ok := mod.(TokenizerModule)
	if !ok {
		return fmt.Errorf("tokenizer: module %T is not a tokenizer", mod)
	}
	m.tokens = t.Model()
	// Ids of another tokenizer must never meet the blocks of this one.
	m.salt += "\x00" + m.tokens.Fingerprint()
	if err := m.tokens.ChatSupport(); err != nil {
		ctx.Logger().Warn("chats are routed without a prediction", zap.String("model", m.Name), zap.Error(err))
	}
	return nil
}

func (m *Model) validate() error {
	var faults []error
	if m.Name == "" {
		faults = append(faults, errors.New("name: must not be empty"))
	}
	for i, a := range m.Aliases {
		if a == "" {
			faults = append(faults, fmt.Errorf("aliases[%d]: must not be empty", i))
		}
	}
	for _, f := range []struct {
		name  string
		value int
		least int
	}{
		{"block_size", m.BlockSize, 1},
		{"kv_capacity_blocks", m.KVCapacityBlocks, 0},
		{"default_capacity_blocks", m.DefaultCapacityBlocks, 1},
	} {
		if f.value < f.least || f.value > 1<<30 {
			faults = append(faults, fmt.Errorf("%s: want at least %d and at most 2^30, got %d", f.name, f.least, f.value))
		}
	}
	if err := m.CostModel.validate(); err != nil {
		faults = append(faults, fmt.Errorf("cost_model: %w", err))
	}
	return errors.Join(faults...)
}

// validate reports every negative parameter; JSON has no infinite ones.
func (c *Cost) validate() error {
	if c == nil {
		return nil
	}
	var faults []error
	for _, f := range []struct {
		name  string
		value *float64
	}{
		{"prefill_token_secs", c.PrefillTokenSecs},
		{"prefill_pair_secs", c.PrefillPairSecs},
		{"prefill_fixed_secs", c.PrefillFixedSecs},
	} {
		if f.value != nil && *f.value < 0 {
			faults = append(faults, fmt.Errorf("%s: must not be negative, got %g", f.name, *f.value))
		}
	}
	return errors.Join(faults...)
}

// config fills in the defaults; a nil Cost is all defaults.
func (c *Cost) config() policies.CostModelConfig {
	cfg := policies.DefaultCostModelConfig()
	if c == nil {
		return cfg
	}
	for _, f := range []struct {
		from *float64
		to   *float64
	}{
		{c.PrefillTokenSecs, &cfg.PrefillToken},
		{c.PrefillPairSecs, &cfg.PrefillPair},
		{c.PrefillFixedSecs, &cfg.PrefillFixed},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return cfg
}

// prompt chains a request's tokens into blocks. The chain is salted, so that equal tokens under another tokenizer or
// cache_salt are other blocks, as they are in the engine.
func (m *Model) prompt(tokens []uint32, cacheSalt string) *index.Prompt {
	return index.NewPrompt(tokens, index.Root(m.salt, "", cacheSalt, m.BlockSize), m.BlockSize)
}

// encode gives the ids of generated text; nil without a tokenizer.
func (m *Model) encode(text string) []uint32 {
	if m.tokens == nil {
		return nil
	}
	ids, err := m.tokens.Tokenizer().Append(nil, text)
	if err != nil {
		return nil
	}
	return ids
}
