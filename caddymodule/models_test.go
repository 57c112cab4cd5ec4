package caddymodule_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// twoModels is a router over an engine of model a, one of model b and a site over an engine that is not there.
func twoModels(ports []int) string {
	return fmt.Sprintf(`{
	admin off
	persist_config off
	storage_clean_interval off
	auto_https off
	grace_period 1s
	log {
		level ERROR
	}
	inferrail {
		probe_interval 50ms
		model a {
			tokenizer sim
		}
		model b {
			tokenizer sim
		}
	}
}
http://127.0.0.1:%[1]d {
	inferrail 127.0.0.1:%[2]d 127.0.0.1:%[3]d
}
http://127.0.0.1:%[2]d {
	vllm_simulator a {
		zero_latency
		enable_prompt_tokens_details
	}
}
http://127.0.0.1:%[3]d {
	vllm_simulator b {
		zero_latency
		tokenizer huggingface ../tokenize/testdata/qwen3
	}
}
http://127.0.0.1:%[4]d {
	inferrail 127.0.0.1:%[5]d {
		health_interval 50ms
		health_fails 1
	}
}
`, ports[0], ports[1], ports[2], ports[3], ports[4])
}

// TestReplicasGetTheModelsTheyServe has two models behind one proxy, each served by one engine.
func TestReplicasGetTheModelsTheyServe(t *testing.T) {
	ports := freePorts(t, 5)
	load(t, twoModels(ports))
	url := func(i int, path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", ports[i], path) }
	waitFor(t, "the model cards", func() bool {
		a, err := get(url(0, "/v1/models"))
		return err == nil && strings.Count(string(a.body), `"max_model_len":32768`) == 2
	})
	// Health checks begin while the configuration still loads, before the engines listen.
	waitFor(t, "the engines to be healthy", func() bool {
		a, err := get(url(0, "/health"))
		return err == nil && strings.Contains(string(a.body), `"available":2`)
	})
	for i := range 20 {
		name, port := "a", ports[1]
		if i%2 == 1 {
			name, port = "b", ports[2]
		}
		a := mustPost(t, url(0, "/v1/completions"), fmt.Sprintf(`{"model":%q,"prompt":"prompt %d of a test","max_tokens":2}`, name, i))
		if want := fmt.Sprintf("127.0.0.1:%d", port); a.header.Get("X-Inferrail-Replica") != want {
			t.Errorf("model %s went to %s, want %s", name, a.header.Get("X-Inferrail-Replica"), want)
		}
	}
	// The engine of b has another tokenizer than the router believes.
	if a, b := metric(t, "inferrail_prompt_token_mismatches_total", "model", "a"),
		metric(t, "inferrail_prompt_token_mismatches_total", "model", "b"); a > 0 || b != 10 {
		t.Errorf("prompts of another length: %v of model a, %v of model b; want none and 10", a, b)
	}

	// Health is that of the site's own replicas.
	waitFor(t, "the dead replica to be found out", func() bool {
		a, err := get(url(3, "/health"))
		return err == nil && a.status == http.StatusServiceUnavailable
	})
	if a, err := get(url(0, "/health")); err != nil || a.status != http.StatusOK {
		t.Errorf("health of the living site: %d, %v", a.status, err)
	}
	a, err := post(t, http.DefaultClient, url(3, "/v1/completions"), `{"model":"a","prompt":"x"}`)
	if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("X-Inferrail-Reason") != "no_replica" {
		t.Errorf("no replica: %d %v %s, %v", a.status, a.header, a.body, err)
	}
}

// TestModelThatNoEngineServes is told at the router, not by some engine.
func TestModelThatNoEngineServes(t *testing.T) {
	f := newFleet(t, 1)
	f.start(t)
	config := strings.Replace(f.caddyfile(), "model inferrail/sim-8b", "model inferrail/other", 1)
	load(t, config)
	waitFor(t, "the model to be refused", func() bool {
		a, err := post(t, http.DefaultClient, f.url("/v1/completions"), `{"model":"inferrail/other","prompt":"x"}`)
		return err == nil && a.status == http.StatusServiceUnavailable && a.header.Get("X-Inferrail-Reason") == "no_replica"
	})
}

// TestPlainProxyBehindTheHandler passes bodies on through a proxy that has neither our policy nor our transport.
func TestPlainProxyBehindTheHandler(t *testing.T) {
	f := newFleet(t, 1)
	config := strings.Replace(f.caddyfile(), "inferrail "+f.addresses[0]+" {\n\t\tpolicy cost_model\n\t}",
		"inferrail\n\treverse_proxy "+f.addresses[0], 1)
	if !strings.Contains(config, "reverse_proxy") {
		t.Fatalf("the configuration is not what this test edits:\n%s", config)
	}
	load(t, config)
	mustPost(t, f.url("/v1/completions"), `{"model":"sim","prompt":"x","max_tokens":1}`)
}
