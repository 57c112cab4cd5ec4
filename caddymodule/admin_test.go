package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// withAdmin gives a configuration an admin listener, and its address. Caddy logs what its API refuses; the log is quiet.
func withAdmin(t *testing.T, config string) (string, string) {
	t.Helper()
	addr := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	t.Cleanup(func() { // stopping Caddy leaves the admin listener open
		if err := caddy.Load([]byte(`{"admin":{"disabled":true,"config":{"persist":false}},"logging":{"logs":{"default":{"level":"ERROR"}}}}`), true); err != nil {
			t.Error(err)
		}
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	config = strings.Replace(config, "level ERROR", "level FATAL", 1)
	return strings.Replace(config, "admin off", "admin "+addr, 1), "http://" + addr
}

// explained is the answer of the explain routes; every member is known.
type explained struct {
	Fleet        string          `json:"fleet"`
	Policy       string          `json:"policy"`
	Model        string          `json:"model"`
	PromptTokens int             `json:"prompt_tokens"`
	Blocks       int             `json:"blocks"`
	Prediction   string          `json:"prediction"`
	Winner       string          `json:"winner"`
	DecidedBy    string          `json:"decided_by"`
	Replicas     []explainedFrom `json:"replicas"`
}

type explainedFrom struct {
	Replica      string  `json:"replica"`
	Offered      bool    `json:"offered"`
	WhyNot       string  `json:"why_not"`
	InFlight     int     `json:"in_flight"`
	CachedTokens int     `json:"cached_tokens"`
	QueuedSecs   float64 `json:"queued_secs"`
	Indexed      int     `json:"indexed_blocks"`
	Capacity     int     `json:"index_capacity_blocks"`
	Guard        string  `json:"guard"`
	Estimate     *struct {
		Queue   float64 `json:"queue_secs"`
		Prefill float64 `json:"prefill_secs"`
		TTFT    float64 `json:"ttft_secs"`
	} `json:"estimate"`
}

func (e explained) replica(address string) explainedFrom {
	for _, r := range e.Replicas {
		if r.Replica == address {
			return r
		}
	}
	return explainedFrom{}
}

// strictly decodes an answer all of whose members are known.
func strictly(t *testing.T, a answer, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(a.body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil || a.status != http.StatusOK || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v: %v: %s", a.status, a.header, err, a.body)
	}
}

func explain(t *testing.T, admin, path, body string) explained {
	t.Helper()
	a, err := post(t, http.DefaultClient, admin+"/inferrail/explain"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	var e explained
	strictly(t, a, &e)
	return e
}

// counters are the router's series by name and labels, those that age by themselves left out.
func counters(t *testing.T) map[string]string {
	t.Helper()
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "inferrail_") || strings.HasSuffix(f.GetName(), "_report_age_seconds") {
			continue
		}
		for _, m := range f.GetMetric() {
			all[fmt.Sprint(f.GetName(), m.GetLabel())] = m.String()
		}
	}
	return all
}

// adminFleet starts a router over three recorders, one of which is kept busy with a stream until release is called.
func adminFleet(t *testing.T, policy string) (f *recorded, admin string, release func()) {
	t.Helper()
	f = newRecorded(t, 3)
	f.directive = "seed 5\nmax_fails 1000000\npolicy " + policy
	config, admin := withAdmin(t, f.caddyfile())
	load(t, config)
	hold, open := gate(t)
	f.behave(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Hold") == "" {
			writeAnswer(w)
			return
		}
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-hold
	})
	req, err := http.NewRequest(http.MethodPost, f.url("/v1/completions"), strings.NewReader(`{"model":"sim","prompt":"held","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Hold", "yes")
	res, err := http.DefaultClient.Do(req) //nolint:bodyclose // closed by what is returned; the head comes with the first byte
	if err != nil {
		t.Fatal(err)
	}
	return f, admin, func() {
		open()
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Error(err)
		}
	}
}

// TestExplainEqualsTheNextDecision explains each of 50 requests, twice, and then sends it.
func TestExplainEqualsTheNextDecision(t *testing.T) {
	for _, policy := range []string{"round_robin", "least_request", "cost_model"} {
		t.Run(policy, func(t *testing.T) {
			f, admin, release := adminFleet(t, policy)
			hits := 0
			winners := make(map[string]bool)
			for i := range 50 {
				path := "/v1/completions"
				body := fmt.Sprintf(`{"model":"sim","prompt":"%s question %d secretword"}`, strings.Repeat(fmt.Sprintf("context%d ", i%5), 60), i%11)
				if i%2 == 0 {
					path = "/v1/chat/completions"
					body = fmt.Sprintf(`{"model":"inferrail/sim-8b","messages":[{"role":"system","content":"%s"},{"role":"user","content":"secretword %d"}]}`,
						strings.Repeat(fmt.Sprintf("rule%d ", i%3), 80), i%7)
				}
				e := explain(t, admin, path, body)
				if diff := cmp.Diff(e, explain(t, admin, path, body), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("explained twice, it differs:\n%s", diff)
				}
				a := mustPost(t, f.url(path), body)
				cached := headerInt(t, a.header, "X-Inferrail-Cached-Tokens")
				got := []any{a.header.Get("X-Inferrail-Replica"), a.header.Get("X-Inferrail-Policy"), headerInt(t, a.header, "X-Inferrail-Prompt-Tokens"), cached}
				want := []any{e.Winner, e.Policy, e.PromptTokens, e.replica(e.Winner).CachedTokens}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("request %d was decided otherwise than explained (-explained +decided):\n%s", i, diff)
				}
				if e.Fleet != "default" || e.Policy != policy || e.Model != "inferrail/sim-8b" || e.Prediction != "ok" || e.Blocks != e.PromptTokens/16 || len(e.Replicas) != 3 {
					t.Fatalf("explained %+v", e)
				}
				winners[e.Winner] = true
				if cached > 0 {
					hits++
				}
			}
			if hits == 0 || len(winners) < 2 {
				t.Errorf("%d hits at %d replicas; the test shows nothing", hits, len(winners))
			}
			release()
			settled(t)
		})
	}
}

// TestExplainChangesNothing compares every counter before and after, and the engines see no request.
func TestExplainChangesNothing(t *testing.T) {
	f, admin, release := adminFleet(t, "cost_model")
	defer release()
	mustPost(t, f.url("/v1/completions"), prompt)
	f.take()
	waitFor(t, "every engine's report", func() bool {
		for _, a := range f.addresses {
			if metric(t, "inferrail_replica_engine_running_requests", "replica", a) < 0 {
				return false
			}
		}
		return true
	})
	before := counters(t)
	for i := range 20 {
		for _, body := range []string{prompt, fmt.Sprintf(`{"model":"sim","prompt":"%s %d"}`, strings.Repeat("new words secretword ", 50), i)} {
			a, err := post(t, http.DefaultClient, admin+"/inferrail/explain/v1/completions", body)
			if err != nil || a.status != 200 || bytes.Contains(a.body, []byte("secretword")) {
				t.Fatalf("%d %v: %s", a.status, err, a.body)
			}
		}
	}
	if diff := cmp.Diff(before, counters(t)); diff != "" {
		t.Errorf("explaining changed counters (-before +after):\n%s", diff)
	}
	if seen := f.take(); len(seen) > 0 {
		t.Errorf("%d requests reached an engine", len(seen))
	}
}

// TestExplainWithoutPrediction says why there is none.
func TestExplainWithoutPrediction(t *testing.T) {
	f := newRecorded(t, 1)
	config, admin := withAdmin(t, strings.Replace(f.caddyfile(), "tokenizer sim", "", 1))
	load(t, config)
	e := explain(t, admin, "/v1/completions", prompt)
	if e.Prediction != "unavailable" || e.Blocks != 0 || e.Winner != f.addresses[0] {
		t.Errorf("explained %+v", e)
	}
}

// TestAdminShowsUnavailableReplicas has one engine that is dead and one that is full.
func TestAdminShowsUnavailableReplicas(t *testing.T) {
	f := newRecorded(t, 1)
	dead := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	f.addresses = append(f.addresses, dead)
	f.directive = "health_interval 20ms\nhealth_fails 1\nunhealthy_request_count 1"
	config, admin := withAdmin(t, f.caddyfile())
	load(t, config)
	// Before any request, everything is known already.
	first := explain(t, admin, "/v1/completions", prompt)
	if len(first.Replicas) != 2 || first.Winner == "" {
		t.Errorf("before the first request: %+v", first)
	}
	waitFor(t, "the dead engine to be found", func() bool {
		return explain(t, admin, "/v1/completions", prompt).replica(dead).WhyNot == "unhealthy"
	})
	e := explain(t, admin, "/v1/completions", prompt)
	if e.Winner != f.addresses[0] || !e.replica(f.addresses[0]).Offered || e.replica(dead).Offered {
		t.Errorf("explained %+v", e)
	}
	hold, open := gate(t)
	begun := make(chan struct{})
	f.behave(func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-hold
		writeAnswer(w)
	})
	done := make(chan answer, 1)
	go func() {
		a, _ := post(t, http.DefaultClient, f.url("/v1/completions"), prompt)
		done <- a
	}()
	<-begun
	e = explain(t, admin, "/v1/completions", prompt)
	if r := e.replica(f.addresses[0]); r.WhyNot != "full" || r.InFlight != 1 || e.Winner != "" {
		t.Errorf("explained %+v", e)
	}
	waitFor(t, "the engine's report", func() bool {
		r := replicas(t, admin)
		return r[0].Report != nil
	})
	for _, r := range replicas(t, admin) {
		switch {
		case r.Fleet != "default":
			t.Errorf("fleet %q", r.Fleet)
		case r.Replica == dead && (r.Available || r.WhyNot != "unhealthy" || r.InFlight != 0 || r.Report != nil):
			t.Errorf("the dead one is %+v", r)
		case r.Replica == f.addresses[0] && (r.Available || r.WhyNot != "full" || r.InFlight != 1 || r.Waiting != 1 ||
			r.AwaitingToken != 1 || r.PromptTokens == 0 || r.Capacity != 16384): // the queue drains as time goes by
			t.Errorf("the full one is %+v", r)
		}
	}
	open()
	if a := <-done; a.status != 200 {
		t.Errorf("the held request: %d %s", a.status, a.body)
	}
	settled(t)
	if r := replicas(t, admin)[0]; !r.Available || r.WhyNot != "" || r.InFlight != 0 || r.PromptTokens != 0 {
		t.Errorf("at rest: %+v", r)
	}
}

// listed is an entry of /inferrail/replicas; every member is known.
type listed struct {
	Fleet         string   `json:"fleet"`
	Replica       string   `json:"replica"`
	Available     bool     `json:"available"`
	WhyNot        string   `json:"why_not"`
	InFlight      int      `json:"in_flight"`
	Waiting       int      `json:"awaiting_response"`
	AwaitingToken int      `json:"awaiting_first_byte"`
	PromptTokens  int      `json:"in_flight_prompt_tokens"`
	QueuedSecs    float64  `json:"queued_secs"`
	Indexed       int      `json:"indexed_blocks"`
	Capacity      int      `json:"index_capacity_blocks"`
	Models        []string `json:"models"`
	Report        *struct {
		Age       float64 `json:"age_secs"`
		Running   int     `json:"running"`
		Waiting   int     `json:"waiting"`
		KVUsage   float64 `json:"kv_usage"`
		KVName    string  `json:"kv_usage_metric"`
		Queries   int64   `json:"prefix_cache_queries"`
		Hits      int64   `json:"prefix_cache_hits"`
		BlockSize int     `json:"block_size"`
		GPUBlocks int     `json:"num_gpu_blocks"`
	} `json:"report"`
}

func replicas(t *testing.T, admin string) []listed {
	t.Helper()
	var list []listed
	strictly(t, request(t, http.DefaultClient, http.MethodGet, admin+"/inferrail/replicas", nil), &list)
	return list
}

// TestReplicasOfRealEngines shows what the simulators report.
func TestReplicasOfRealEngines(t *testing.T) {
	f := newFleet(t, 2)
	f.simulator = "zero_latency\nnum_gpu_blocks_override 500\nmax_model_len 2048"
	config, admin := withAdmin(t, f.caddyfile())
	load(t, config)
	mustPost(t, f.url("/v1/completions"), `{"model":"sim","prompt":"`+strings.Repeat("word ", 200)+`"}`)
	indexed := 0
	waitFor(t, "both reports", func() bool {
		indexed = 0
		for _, r := range replicas(t, admin) {
			if r.Report == nil || r.Report.GPUBlocks != 500 || len(r.Models) == 0 {
				return false
			}
			indexed += r.Indexed
		}
		return true
	})
	for i, r := range replicas(t, admin) {
		if r.Replica != f.addresses[i] || !r.Available || r.Report.BlockSize != 16 || r.Models[0] != canonical || r.Report.KVName == "" {
			t.Errorf("replica %d is %+v", i, r)
		}
	}
	if indexed == 0 {
		t.Error("no blocks are indexed")
	}
}

// TestAdminErrors are those of Caddy's admin API.
func TestAdminErrors(t *testing.T) {
	f := newRecorded(t, 1)
	config, admin := withAdmin(t, strings.Replace(f.caddyfile(), "probe_interval 100ms", "probe_interval 100ms\n\t\tmodel other", 1))
	load(t, config)
	for _, tc := range []struct {
		name, method, path, body string
		status                   int
		says                     string
	}{
		{"unknown model", "POST", "/inferrail/explain/v1/completions", `{"model":"gpt-5"}`, 404, `gpt-5`},
		{"model of another type", "POST", "/inferrail/explain/v1/completions", `{"model":5}`, 400, "model must be a string"},
		{"no model", "POST", "/inferrail/explain/v1/completions", `{"prompt":"x"}`, 400, "several"},
		{"not JSON", "POST", "/inferrail/explain/v1/completions", `{"model":`, 400, "byte 9"},
		{"not an object", "POST", "/inferrail/explain/v1/chat/completions", `[]`, 400, "object"},
		{"nothing", "POST", "/inferrail/explain/v1/chat/completions", ``, 400, "byte 0"},
		{"explain by GET", "GET", "/inferrail/explain/v1/completions", "", 405, "POST"},
		{"replicas by POST", "POST", "/inferrail/replicas", "{}", 405, "GET"},
		{"unknown path", "GET", "/inferrail/nothing", "", 404, "/inferrail/nothing"},
		{"unknown API path", "POST", "/inferrail/explain/v1/embeddings", "{}", 404, "embeddings"},
		{"unknown fleet", "POST", "/inferrail/explain/v1/completions?fleet=blue", prompt, 404, "blue"},
		{"too large", "POST", "/inferrail/explain/v1/completions", strings.Repeat(" ", 64<<20+1), 413, "67108864"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := request(t, http.DefaultClient, tc.method, admin+tc.path, strings.NewReader(tc.body))
			var v struct {
				Error string `json:"error"`
			}
			if err := json.Unmarshal(a.body, &v); err != nil || a.status != tc.status || !strings.Contains(v.Error, tc.says) {
				t.Errorf("%d %s, want %d and %q", a.status, a.body, tc.status, tc.says)
			}
			if tc.status == 405 && a.header.Get("Allow") != tc.says {
				t.Errorf("Allow %q", a.header.Get("Allow"))
			}
		})
	}
	if seen := f.take(); len(seen) > 0 {
		t.Errorf("%d requests reached an engine", len(seen))
	}
}

// TestSeveralFleetsMustBeNamed explains for one of two fleets.
func TestSeveralFleetsMustBeNamed(t *testing.T) {
	f := newRecorded(t, 2)
	all := f.addresses
	f.addresses, f.directive = all[:1], "fleet a"
	config := f.caddyfile() + fmt.Sprintf("http://127.0.0.1:%d {\n\tinferrail %s %s {\n\t\tfleet b\n\t}\n}\n", freePorts(t, 1)[0], all[0], all[1])
	config, admin := withAdmin(t, config)
	load(t, config)
	a, err := post(t, http.DefaultClient, admin+"/inferrail/explain/v1/completions", prompt)
	if err != nil || a.status != 400 || !strings.Contains(string(a.body), `?fleet=`) {
		t.Errorf("without a name: %d %v %s", a.status, err, a.body)
	}
	for fleet, n := range map[string]int{"a": 1, "b": 2} {
		if e := explain(t, admin, "/v1/completions?fleet="+fleet, prompt); e.Fleet != fleet || len(e.Replicas) != n {
			t.Errorf("fleet %s: %+v", fleet, e)
		}
	}
	// What one fleet has been sent is not in the other's index, although they share an address.
	long := `{"model":"sim","prompt":"` + strings.Repeat("word ", 100) + `"}`
	mustPost(t, f.url("/v1/completions"), long)
	if n := explain(t, admin, "/v1/completions?fleet=a", long).replica(all[0]).CachedTokens; n == 0 {
		t.Error("the fleet's own index is empty")
	}
	if n := explain(t, admin, "/v1/completions?fleet=b", long).replica(all[0]).CachedTokens; n != 0 {
		t.Errorf("the other fleet's index has %d tokens", n)
	}
	if n := len(replicas(t, admin)); n != 3 {
		t.Errorf("%d replicas are listed, want 3", n)
	}
}

// TestAdminWithoutTheApp answers for configurations that have no router.
func TestAdminWithoutTheApp(t *testing.T) {
	config, admin := withAdmin(t, "{\n\tadmin off\n\tpersist_config off\n\tauto_https off\n\tstorage_clean_interval off\n\tlog {\n\t\tlevel ERROR\n\t}\n}\n"+
		fmt.Sprintf("http://127.0.0.1:%d {\n\trespond hello\n}\n", freePorts(t, 1)[0]))
	load(t, config)
	if a := request(t, http.DefaultClient, http.MethodGet, admin+"/inferrail/replicas", nil); a.status != 503 {
		t.Errorf("%d %s", a.status, a.body)
	}
}
