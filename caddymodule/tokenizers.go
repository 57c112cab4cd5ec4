package caddymodule

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/inferrail/inferrail/tokenize"
)

func init() {
	caddy.RegisterModule(new(SimTokenizer))
	caddy.RegisterModule(new(HuggingFaceTokenizer))
}

// SimTokenizer is the tokenizer of the simulated engines: deterministic, without a vocabulary file.
type SimTokenizer struct {
	model *tokenize.Model
}

// CaddyModule returns the Caddy module information.
func (*SimTokenizer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "inferrail.tokenizers.sim", New: func() caddy.Module { return new(SimTokenizer) }}
}

// Provision makes the tokenizer.
func (t *SimTokenizer) Provision(caddy.Context) error {
	t.model = tokenize.NewSim()
	return nil
}

// Model returns the way from requests to token ids.
func (t *SimTokenizer) Model() *tokenize.Model { return t.model }

// UnmarshalCaddyfile sets up the tokenizer from Caddyfile tokens. Syntax:
//
//	tokenizer sim
func (t *SimTokenizer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume tokenizer name
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unrecognized subdirective %q", d.Val())
	}
	return nil
}

// HuggingFaceTokenizer reads the tokenizer and the chat template of a model directory, as engines do. Nothing is
// downloaded.
type HuggingFaceTokenizer struct {
	// The model directory: tokenizer.json (or tokenizer.json.gz), tokenizer_config.json and, where there is one,
	// chat_template.jinja. Required.
	Path string `json:"path,omitempty"`

	key   tokenizerKey
	model *tokenize.Model
}

type tokenizerKey struct {
	path  string
	files string // names, sizes and times of change
}

// loadedTokenizer is the pooled value.
type loadedTokenizer struct{ *tokenize.Model }

// Destruct is called when no configuration uses the tokenizer.
func (loadedTokenizer) Destruct() error { return nil }

// CaddyModule returns the Caddy module information.
func (*HuggingFaceTokenizer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "inferrail.tokenizers.huggingface",
		New: func() caddy.Module { return new(HuggingFaceTokenizer) },
	}
}

// Provision loads the tokenizer, or takes the one that an earlier configuration has loaded from the same files.
func (t *HuggingFaceTokenizer) Provision(caddy.Context) error {
	if t.Path == "" {
		return fmt.Errorf("path: must not be empty")
	}
	if info, err := os.Stat(t.Path); err != nil || !info.IsDir() {
		return fmt.Errorf("path %q: there is no such directory", t.Path)
	}
	key := tokenizerKey{path: t.Path}
	for _, name := range []string{
		"tokenizer.json", "tokenizer.json.gz", "tokenizer_config.json", "chat_template.jinja", "config.json",
	} {
		if info, err := os.Stat(filepath.Join(t.Path, name)); err == nil {
			key.files += fmt.Sprintf("%s %d %d\n", name, info.Size(), info.ModTime().UnixNano())
		}
	}
	v, _, err := tokenizerPool.LoadOrNew(key, func() (caddy.Destructor, error) {
		m, err := tokenize.LoadHuggingFace(t.Path)
		if err != nil {
			return nil, err
		}
		return loadedTokenizer{m}, nil
	})
	if err != nil {
		return fmt.Errorf("path %q: %w", t.Path, err)
	}
	t.key, t.model = key, v.(loadedTokenizer).Model
	return nil
}

// Cleanup lets go of the tokenizer.
func (t *HuggingFaceTokenizer) Cleanup() error {
	if t.key.path == "" {
		return nil
	}
	_, err := tokenizerPool.Delete(t.key)
	return err
}

// Model returns the way from requests to token ids.
func (t *HuggingFaceTokenizer) Model() *tokenize.Model { return t.model }

// UnmarshalCaddyfile sets up the tokenizer from Caddyfile tokens. Syntax:
//
//	tokenizer huggingface <directory>
func (t *HuggingFaceTokenizer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume tokenizer name
	if !d.Args(&t.Path) {
		return d.Err("huggingface needs the model's directory")
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unrecognized subdirective %q", d.Val())
	}
	return nil
}

// Interface guards
var (
	_ TokenizerModule       = (*SimTokenizer)(nil)
	_ TokenizerModule       = (*HuggingFaceTokenizer)(nil)
	_ caddy.Provisioner     = (*SimTokenizer)(nil)
	_ caddy.Provisioner     = (*HuggingFaceTokenizer)(nil)
	_ caddy.CleanerUpper    = (*HuggingFaceTokenizer)(nil)
	_ caddyfile.Unmarshaler = (*SimTokenizer)(nil)
	_ caddyfile.Unmarshaler = (*HuggingFaceTokenizer)(nil)
)
