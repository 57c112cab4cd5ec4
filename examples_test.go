package inferrail_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/inferrail/inferrail"
)

var fence = regexp.MustCompile("(?ms)^```(caddyfile|json)\n(.*?)^```$")

// TestExamplesAdapt keeps every Caddyfile of the repository, those in the documentation included, formatted and free of
// errors. JSON in the documentation must decode.
func TestExamplesAdapt(t *testing.T) {
	files, err := filepath.Glob("examples/*.caddyfile")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range append(files, "Caddyfile.example") {
		t.Run(file, func(t *testing.T) { checkCaddyfile(t, readFile(t, file)) })
	}
	docs, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range append(docs, "README.md") {
		for _, m := range fence.FindAllSubmatch(readFile(t, file), -1) {
			seen++
			t.Run(file, func(t *testing.T) {
				if string(m[1]) == "json" {
					checkJSON(t, m[2])
					return
				}
				checkCaddyfile(t, withModel(m[2]))
			})
		}
	}
	if seen == 0 {
		t.Error("found no configuration in the documentation")
	}
}

// withModel adds what an excerpt of a Caddyfile leaves out.
func withModel(config []byte) []byte {
	if bytes.HasPrefix(config, []byte("{\n")) || bytes.Contains(config, []byte("vllm_simulator")) {
		return config
	}
	return append([]byte("{\n\tinferrail {\n\t\tmodel Qwen/Qwen3-8B\n\t}\n}\n\n"), config...)
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func checkCaddyfile(t *testing.T, config []byte) {
	t.Helper()
	if formatted := caddyfile.Format(config); !bytes.Equal(bytes.TrimSpace(formatted), bytes.TrimSpace(config)) {
		t.Errorf("not as caddy fmt has it; want\n%s", formatted)
	}
	out, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(config, nil)
	if err != nil {
		t.Fatalf("adapting: %v\n%s", err, config)
	}
	checkJSON(t, out)
}

// checkJSON provisions a configuration as `caddy validate` does, with a model's files from the tests.
func checkJSON(t *testing.T, config []byte) {
	t.Helper()
	config = bytes.ReplaceAll(config, []byte("/models/Qwen3-8B"), []byte("tokenize/testdata/qwen3"))
	var cfg caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &cfg); err != nil {
		t.Fatalf("decoding: %v\n%s", err, config)
	}
	if err := caddy.Validate(&cfg); err != nil {
		t.Fatalf("provisioning: %v\n%s", err, config)
	}
}
