package simulator

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/google/go-cmp/cmp"

	"github.com/inferrail/inferrail/tokenize"
)

func init() { caddy.RegisterModule(new(testTokenizer)) }

// testTokenizer stands for a tokenizer module, which other packages register.
type testTokenizer struct {
	Words []string `json:"words,omitempty"`
}

func (*testTokenizer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "inferrail.tokenizers.test_words", New: func() caddy.Module { return new(testTokenizer) }}
}

func (m *testTokenizer) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	m.Words = d.RemainingArgs()
	return nil
}

func (m *testTokenizer) Model() *tokenize.Model { return tokenize.NewSim() }

func TestCaddyfile(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			in, want, _ := strings.Cut(string(b), "----------\n")
			out, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(in), map[string]any{"filename": "Caddyfile"})
			if fragment, fails := strings.CutPrefix(want, "error: "); fails {
				fragment = strings.TrimSpace(fragment)
				if err == nil || !strings.Contains(err.Error(), fragment) {
					t.Errorf("error %v, want one with %q", err, fragment)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got, expected any
			if err := json.Unmarshal(out, &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(want), &expected); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if diff := cmp.Diff(expected, got); diff != "" {
				t.Errorf("adapted JSON (-want +got):\n%s", diff)
			}
		})
	}
}
