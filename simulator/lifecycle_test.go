package simulator

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/goleak"
)

// config is a Caddy configuration with one simulator for each address.
func config(addrs []string, settings string) *caddy.Config {
	servers := make(map[string]any)
	for i, addr := range addrs {
		var handler map[string]any
		if err := json.Unmarshal([]byte(`{"handler":"vllm_simulator","model":"m"`+settings+`}`), &handler); err != nil {
			panic(err)
		}
		servers[fmt.Sprintf("srv%d", i)] = map[string]any{
			"listen": []string{addr}, "automatic_https": map[string]any{"disable": true},
			"routes": []any{map[string]any{"handle": []any{handler}}},
		}
	}
	b, err := json.Marshal(map[string]any{
		"admin":   map[string]any{"disabled": true, "config": map[string]any{"persist": false}},
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR"}}},
		"apps": map[string]any{
			"http": map[string]any{"servers": servers, "grace_period": "10s"},
			"tls":  map[string]any{"disable_storage_clean": true}, // it would write to the user's data folder
		},
	})
	if err != nil {
		panic(err)
	}
	cfg := new(caddy.Config)
	if err := json.Unmarshal(b, cfg); err != nil {
		panic(err)
	}
	return cfg
}

func load(t *testing.T, addrs []string, settings string) {
	t.Helper()
	b, err := json.Marshal(config(addrs, settings))
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(b, true); err != nil {
		t.Fatal(err)
	}
}

func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	var out []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().String())
	}
	return out
}

func pooledEngines() int {
	n := 0
	engines.Range(func(any, any) bool { n++; return true })
	return n
}

func post(t *testing.T, client *http.Client, addr, body string) string {
	t.Helper()
	resp, err := client.Post("http://"+addr+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Server") != "uvicorn" {
		t.Errorf("Server is %q", resp.Header.Get("Server"))
	}
	return string(b)
}

func TestReloadKeepsTheEngine(t *testing.T) {
	leak := goleak.IgnoreCurrent()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	addrs := freeAddrs(t, 3)
	const details = `,"zero_latency":true,"enable_prompt_tokens_details":true`
	load(t, addrs, details)
	if n := pooledEngines(); n != 3 {
		t.Fatalf("%d engines for three servers, want 3", n)
	}
	body := `{"prompt":` + ids(1, 100) + `,"max_tokens":1}`
	for i, want := range []string{`"cached_tokens":0,`, `"cached_tokens":96,`} {
		if got := post(t, client, addrs[0], body); !strings.Contains(got, want) {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
	if got := post(t, client, addrs[1], body); !strings.Contains(got, `"cached_tokens":0,`) {
		t.Errorf("the second server has the first one's cache: %s", got)
	}
	load(t, addrs, details+`,"enable_prefix_caching":true`) // the default, written out
	if got := post(t, client, addrs[0], body); !strings.Contains(got, `"cached_tokens":96,`) {
		t.Errorf("after a reload of the same settings: %s", got)
	}
	load(t, addrs[:1], details+`,"block_size":32`)
	if got := post(t, client, addrs[0], body); !strings.Contains(got, `"cached_tokens":0,`) {
		t.Errorf("after a change of the block size: %s", got)
	}
	if n := pooledEngines(); n != 1 {
		t.Errorf("%d engines after the reload, want 1", n)
	}
	if err := caddy.Stop(); err != nil {
		t.Error(err)
	}
	if n := pooledEngines(); n != 0 {
		t.Errorf("%d engines after the end, want 0", n)
	}
	goleak.VerifyNone(t, leak)
}

func TestRequestsFinishOverAReload(t *testing.T) {
	leak := goleak.IgnoreCurrent()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	addrs := freeAddrs(t, 1)
	load(t, addrs, `,"decode_token_ms":5`)
	req, err := client.Post("http://"+addrs[0]+"/v1/completions", "application/json",
		strings.NewReader(`{"prompt":[1,2,3],"max_tokens":60,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer req.Body.Close()
	load(t, addrs, `,"decode_token_ms":6`)
	b, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `"finish_reason":"length"`) || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
		t.Errorf("the stream was cut off: %q", b[max(0, len(b)-300):])
	}
	if err := caddy.Stop(); err != nil {
		t.Error(err)
	}
	if n := pooledEngines(); n != 0 {
		t.Errorf("%d engines after the end, want 0", n)
	}
	goleak.VerifyNone(t, leak)
}

func TestValidateStartsNothing(t *testing.T) {
	leak := goleak.IgnoreCurrent()
	if err := caddy.Validate(config([]string{"127.0.0.1:0"}, "")); err != nil {
		t.Fatal(err)
	}
	if n := pooledEngines(); n != 0 {
		t.Errorf("%d engines after validation, want 0", n)
	}
	goleak.VerifyNone(t, leak)
}

func TestBadSettingsAreNamed(t *testing.T) {
	for _, tc := range []struct{ settings, want string }{
		{`,"max_num_batched_tokens":100`, "vllm_simulator: max_num_batched_tokens 100 is below max_num_seqs 256"},
		{`,"model":""`, "vllm_simulator: model is missing"},
		{`,"block_size":-1`, "vllm_simulator: block_size -1 is not between 1 and 65536"},
		{`,"num_gpu_blocks_override":100`, "vllm_simulator: max_model_len 32768 needs 2048 blocks of 16 tokens, " +
			"num_gpu_blocks_override 100 leaves 99"},
		{`,"scheduling_policy":"lifo"`, `vllm_simulator: scheduling_policy "lifo" is neither fcfs nor priority`},
		{`,"decode_token_ms":-3`, "vllm_simulator: decode_token_ms -3 is not between 0 and"},
		{`,"served_model_name":[""]`, `vllm_simulator: served_model_name "" is empty`},
		{`,"tokenizer":{"name":"nope"}`, "unknown module: inferrail.tokenizers.nope"},
	} {
		err := caddy.Validate(config([]string{"127.0.0.1:0"}, tc.settings))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q", tc.settings, err, tc.want)
		}
	}
	if n := pooledEngines(); n != 0 {
		t.Errorf("%d engines left after faults, want 0", n)
	}
}

func TestTokenizerModuleIsUsed(t *testing.T) {
	if err := caddy.Validate(config([]string{"127.0.0.1:0"}, `,"tokenizer":{"name":"test_words"}`)); err != nil {
		t.Error(err)
	}
}
