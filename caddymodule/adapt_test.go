package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the results of testdata/adapt anew")

// goldenLine divides a Caddyfile from what it adapts to: JSON, or "error: " and the whole message.
const goldenLine = "----------\n"

// adaptFile adapts a Caddyfile and gives what stands behind the line of dashes.
func adaptFile(t *testing.T, config []byte) string {
	t.Helper()
	out, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(config, map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	for _, w := range warnings {
		t.Errorf("warning: %v", w)
	}
	var indented bytes.Buffer
	if err := json.Indent(&indented, out, "", "\t"); err != nil {
		t.Fatal(err)
	}
	return indented.String() + "\n"
}

// TestAdapt compares every Caddyfile of testdata/adapt with the JSON or the error behind it. Good ones are formatted as
// `caddy fmt` does and can be provisioned; the errors of bad ones say where they are. -update writes the results anew.
func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	atLine := regexp.MustCompile(`at Caddyfile:[1-9][0-9]*\b`)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".caddyfiletest")
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			config, want, ok := bytes.Cut(raw, []byte(goldenLine))
			if !ok {
				t.Fatalf("%s has no line of dashes", file)
			}
			if formatted := caddyfile.Format(config); !bytes.Equal(formatted, config) {
				t.Errorf("not formatted as caddy fmt does: %s", cmp.Diff(string(config), string(formatted)))
			}
			got := adaptFile(t, config)
			if *update {
				if err := os.WriteFile(file, slices.Concat(config, []byte(goldenLine), []byte(got)), 0o644); err != nil {
					t.Fatal(err)
				}
				want = []byte(got)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("adapted differently (-want +got):\n%s", diff)
			}
			if bad := strings.HasPrefix(name, "bad_"); bad {
				if !strings.HasPrefix(got, "error: ") || !atLine.MatchString(got) {
					t.Errorf("want an error that says where, got %s", got)
				}
				return
			}
			provision(t, []byte(got))
		})
	}
}

// provision does what `caddy validate` does with JSON.
func provision(t *testing.T, config []byte) {
	t.Helper()
	if err := validate(t, config); err != nil {
		t.Errorf("provisioning: %v", err)
	}
}

// validate is `caddy validate` for JSON, without the default log, which would print, and without Caddy's certificates.
func validate(t *testing.T, config []byte) error {
	t.Helper()
	var cfg caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &cfg); err != nil {
		return err
	}
	quiet := &caddy.CustomLog{BaseLog: caddy.BaseLog{Level: "ERROR"}}
	cfg.Logging = &caddy.Logging{Logs: map[string]*caddy.CustomLog{"default": quiet}}
	cfg.Admin = &caddy.AdminConfig{Disabled: true, Config: &caddy.ConfigSettings{Persist: new(bool)}}
	return caddy.Validate(&cfg)
}

// validConfig is a configuration in which faults are put.
const validConfig = `{"apps":{
	"inferrail":{"models":[{"name":"m","aliases":["a"]}]},
	"http":{"servers":{"srv0":{"listen":["127.0.0.1:0"],"routes":[{"handle":[
		{"handler":"inferrail"},
		{"handler":"reverse_proxy","upstreams":[{"dial":"127.0.0.1:9"}],
		 "transport":{"protocol":"inferrail"},
		 "load_balancing":{"retries":2,"selection_policy":{"policy":"inferrail","routing":{"name":"cost_model"}}}}]}]}}}}}`

// TestConfigErrorsNameThePath breaks a good JSON configuration in one place each and expects an error that names the place.
func TestConfigErrorsNameThePath(t *testing.T) {
	if err := validate(t, []byte(validConfig)); err != nil {
		t.Fatalf("the configuration is broken without a fault: %v", err)
	}
	noTokenizer := t.TempDir() // a model directory that lacks its tokenizer
	for name, text := range map[string]string{"config.json": `{"model_type":"qwen3"}`, "tokenizer_config.json": `{}`} {
		if err := os.WriteFile(filepath.Join(noTokenizer, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const (
		models  = `"models":[{"name":"m","aliases":["a"]}]`
		handler = `{"handler":"inferrail"}`
		policy  = `{"name":"cost_model"}`
	)
	model := func(members string) string { return `"models":[{"name":"m",` + members + `}]` }
	quoted := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	for name, tc := range map[string]struct {
		old, new string
		want     []string
	}{
		"unknown field of the app":        {models, models + `,"probe_every":"1s"`, []string{`"probe_every"`, "inferrail"}},
		"unknown field of a model":        {models, model(`"blocksize":16`), []string{`"blocksize"`, "inferrail"}},
		"unknown field of a cost model":   {models, model(`"cost_model":{"fixed":1}`), []string{`"fixed"`, "inferrail"}},
		"unknown field of a tokenizer":    {models, model(`"tokenizer":{"name":"huggingface","paths":"x"}`), []string{`"paths"`, `models[0]`, "tokenizer"}},
		"unknown field of the pool":       {models, models + `,"tokenizer":{"threads":1}`, []string{`"threads"`}},
		"unknown field of the handler":    {handler, `{"handler":"inferrail","max_body":1}`, []string{`"max_body"`, "http.handlers.inferrail"}},
		"unknown field of the selection":  {`"policy":"inferrail",`, `"policy":"inferrail","sed":1,`, []string{`"sed"`, "selection_policies.inferrail"}},
		"unknown field of the policy":     {policy, `{"name":"cost_model","eps":1}`, []string{`"eps"`, "routing", "inferrail.policies.cost_model"}},
		"unknown field of the transport":  {`"protocol":"inferrail"`, `"protocol":"inferrail","early":true`, []string{`"early"`, "transport.inferrail"}},
		"unknown field of http":           {`"protocol":"inferrail"`, `"protocol":"inferrail","http":{"dial":1}`, []string{`"dial"`, "transport.inferrail"}},
		"unknown policy":                  {policy, `{"name":"fastest"}`, []string{"routing", "inferrail.policies.fastest"}},
		"unknown tokenizer":               {models, model(`"tokenizer":{"name":"tiktoken"}`), []string{"models[0]", `"m"`, "inferrail.tokenizers.tiktoken"}},
		"no models":                       {models, `"models":[]`, []string{"no model is configured", "apps.inferrail.models"}},
		"no app":                          {`"inferrail":{` + models + `},`, ``, []string{"no model is configured", "apps.inferrail.models"}},
		"a null model":                    {models, `"models":[null]`, []string{"models[0]"}},
		"unknown model in the handler":    {handler, `{"handler":"inferrail","models":["m","n"]}`, []string{"models[1]", `"n"`}},
		"empty model in the handler":      {handler, `{"handler":"inferrail","models":[""]}`, []string{"models[0]", `""`}},
		"model twice":                     {models, `"models":[{"name":"m"},{"name":"m"}]`, []string{"models[1]", `"m"`}},
		"alias twice":                     {models, model(`"aliases":["a","b","a"]`), []string{"models[0]", `"a"`}},
		"alias of another model":          {models, `"models":[{"name":"m","aliases":["x"]},{"name":"n","aliases":["x"]}]`, []string{"models[1]", `"x"`, `"m"`}},
		"alias is a name":                 {models, `"models":[{"name":"m","aliases":["n"]},{"name":"n"}]`, []string{"models[1]", `"n"`, `"m"`}},
		"empty alias":                     {models, model(`"aliases":["a",""]`), []string{"models[0]", "aliases[1]"}},
		"model without a name":            {models, `"models":[{"aliases":["m"]}]`, []string{"models[0]", "name"}},
		"negative block size":             {models, model(`"block_size":-1`), []string{"models[0]", "block_size", "-1"}},
		"huge block size":                 {models, model(`"block_size":2000000000`), []string{"models[0]", "block_size", "2000000000"}},
		"negative capacity":               {models, model(`"kv_capacity_blocks":-5`), []string{"models[0]", "kv_capacity_blocks", "-5"}},
		"negative default capacity":       {models, model(`"default_capacity_blocks":-5`), []string{"models[0]", "default_capacity_blocks", "-5"}},
		"block size is a string":          {models, model(`"block_size":"16"`), []string{"block_size"}},
		"negative cost":                   {models, model(`"cost_model":{"prefill_token_secs":-1}`), []string{"models[0]", "cost_model", "prefill_token_secs"}},
		"negative fixed cost":             {models, model(`"cost_model":{"prefill_fixed_secs":-0.1}`), []string{"models[0]", "cost_model", "prefill_fixed_secs"}},
		"negative workers":                {models, models + `,"tokenizer":{"workers":-1}`, []string{"tokenizer.workers"}},
		"negative queue":                  {models, models + `,"tokenizer":{"queue":-1}`, []string{"tokenizer.queue"}},
		"negative wait":                   {models, models + `,"tokenizer":{"max_wait":-1}`, []string{"tokenizer.max_wait"}},
		"negative probe interval":         {models, models + `,"probe_interval":"-1s"`, []string{"probe_interval"}},
		"negative drain":                  {models, models + `,"reload_drain":-1`, []string{"reload_drain"}},
		"two faults are both reported":    {models, model(`"block_size":-1`) + `,"reload_drain":-1`, []string{"block_size", "reload_drain"}},
		"negative body size":              {handler, `{"handler":"inferrail","max_body_size":-1}`, []string{"max_body_size", "-1"}},
		"negative body timeout":           {handler, `{"handler":"inferrail","body_timeout":"-1s"}`, []string{"body_timeout", "-1s"}},
		"negative epsilon":                {policy, `{"name":"cost_model","epsilon":-1}`, []string{"epsilon", "-1"}},
		"epsilon is a string":             {policy, `{"name":"cost_model","epsilon":"1"}`, []string{"epsilon"}},
		"negative attempts":               {`"protocol":"inferrail"`, `"protocol":"inferrail","max_attempts":-1`, []string{"max_attempts", "-1"}},
		"seed too large":                  {`"policy":"inferrail",`, `"policy":"inferrail","seed":9007199254740992,`, []string{"selection_policies.inferrail", "seed", "9007199254740992"}},
		"negative seed":                   {`"policy":"inferrail",`, `"policy":"inferrail","seed":-1,`, []string{"seed"}},
		"tokenizer without a path":        {models, model(`"tokenizer":{"name":"huggingface"}`), []string{"models[0]", "tokenizer", "path"}},
		"tokenizer directory is missing":  {models, model(`"tokenizer":{"name":"huggingface","path":"testdata/none"}`), []string{"models[0]", "tokenizer", `path "testdata/none"`}},
		"tokenizer directory without one": {models, model(`"tokenizer":{"name":"huggingface","path":` + quoted(noTokenizer) + `}`), []string{"models[0]", "tokenizer", noTokenizer, "tokenizer.json"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := strings.Replace(validConfig, tc.old, tc.new, 1)
			if config == validConfig {
				t.Fatal("the fault was not put in")
			}
			err := validate(t, []byte(config))
			if err == nil {
				t.Fatal("provisioned without an error")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not name %s: %v", w, err)
				}
			}
		})
	}
}

// TestProvisioningDialsNothing provisions configurations whose engine would notice a connection. Of the short form only
// the router's own requests count: Caddy begins its health checks when it provisions.
func TestProvisioningDialsNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	e := newRecorder(t)
	config := func(directive string) []byte {
		return adapt(t, "{\n\tinferrail {\n\t\tprobe_interval 1ms\n\t\tmodel m {\n\t\t\ttokenizer sim\n\t\t}\n\t}\n}\nhttp://127.0.0.1:0 {\n"+directive+"\n}\n")
	}
	for range 5 {
		provision(t, config("inferrail\nreverse_proxy "+l.Addr().String()+" {\nlb_policy inferrail\nlb_retries 2\ntransport inferrail\n}"))
		provision(t, config("inferrail "+e.addr))
	}
	// A connection that was made waits in the listener's queue.
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err == nil {
		c.Close()
		t.Fatal("provisioning connected to the engine")
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if n := e.probed(); n > 0 {
		t.Errorf("provisioning probed the engine %d times", n)
	}
}

// TestEveryModuleIsCovered fails when a module of the router appears in no good golden file.
func TestEveryModuleIsCovered(t *testing.T) {
	var golden strings.Builder
	files, err := fs.Glob(os.DirFS("testdata/adapt"), "good_*.caddyfiletest")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(filepath.Join("testdata/adapt", f))
		if err != nil {
			t.Fatal(err)
		}
		golden.Write(raw)
	}
	keys := map[string]string{ // how a module of the namespace appears in JSON
		"inferrail.policies":                    `"name": "`,
		"inferrail.tokenizers":                  `"name": "`,
		"http.handlers":                         `"handler": "`,
		"http.reverse_proxy.transport":          `"protocol": "`,
		"http.reverse_proxy.selection_policies": `"policy": "`,
	}
	for _, namespace := range slices.Sorted(maps.Keys(keys)) {
		for _, m := range caddy.GetModules(namespace) {
			ours := strings.HasPrefix(namespace, "inferrail.") || m.ID.Name() == "inferrail"
			if ours && !strings.Contains(golden.String(), keys[namespace]+m.ID.Name()+`"`) {
				t.Errorf("no golden file has module %s", m.ID)
			}
		}
	}
}
