package caddymodule_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/inferrail/inferrail/caddymodule"
)

// reload replaces the configuration that load has started.
func reload(t testing.TB, config string) {
	t.Helper()
	if err := caddy.Load(adapt(t, config), true); err != nil {
		t.Fatalf("reloading: %v\n%s", err, config)
	}
	http.DefaultClient.CloseIdleConnections() // the old servers have closed them
}

// unused is the state when no configuration uses the router.
var unused = map[string]int{"fleets": 0, "replicas": 0, "policies": 0, "tokenizers": 0, "metrics": 0}

// checkState compares what the pools hold.
func checkState(t *testing.T, when string, want map[string]int) {
	t.Helper()
	var got map[string]int
	defer func() {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: other state than expected (-want +got):\n%s", when, diff)
		}
	}()
	for range 200 { // a request lets go of its hold after its answer has ended
		if got = caddymodule.StateInUse(); maps.Equal(got, want) {
			return
		}
		settled(t)
	}
}

// TestStateLivesAsLongAsItIsUsed loads, reloads and stops configurations, and looks at what is kept.
func TestStateLivesAsLongAsItIsUsed(t *testing.T) {
	checkState(t, "before", unused)
	f := newRecorded(t, 2)
	f.model = ""
	config := strings.Replace(f.caddyfile(), "probe_interval 100ms",
		"probe_interval 100ms\n\t\tmodel real {\n\t\t\ttokenizer huggingface testdata/tokenizer\n\t\t}", 1)
	full := map[string]int{"fleets": 1, "replicas": 2, "policies": 2, "tokenizers": 1, "metrics": 1}
	load(t, config)
	checkState(t, "loaded", full)
	long := `{"model":"sim","prompt":"` + strings.Repeat("word ", 100) + `"}`
	first := mustPost(t, f.url("/v1/completions"), long)
	reload(t, config)
	checkState(t, "loaded again", full)
	second := mustPost(t, f.url("/v1/completions"), long)
	if headerInt(t, first.header, "X-Inferrail-Cached-Tokens") != 0 || headerInt(t, second.header, "X-Inferrail-Cached-Tokens") == 0 {
		t.Error("the index was not kept over the reload")
	}

	f.directive = "policy least_request\nfleet other"
	reload(t, f.caddyfile())
	checkState(t, "another fleet and policy, one model", map[string]int{"fleets": 1, "replicas": 2, "policies": 1, "tokenizers": 0, "metrics": 1})
	third := mustPost(t, f.url("/v1/completions"), long)
	if headerInt(t, third.header, "X-Inferrail-Cached-Tokens") != 0 {
		t.Error("another fleet has the index of the first")
	}
	if err := caddy.Stop(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(unused, caddymodule.StateInUse()); diff != "" {
		t.Errorf("state is kept that nothing uses:\n%s", diff)
	}
	load(t, config)
	if n := metric(t, "inferrail_requests_total"); n > 0 {
		t.Errorf("%v requests are counted of a life before", n)
	}
	fourth := mustPost(t, f.url("/v1/completions"), long)
	if headerInt(t, fourth.header, "X-Inferrail-Cached-Tokens") != 0 {
		t.Error("the index outlived the stop")
	}
}

// TestValidatingKeepsNothing provisions without starting, with success and without.
func TestValidatingKeepsNothing(t *testing.T) {
	for _, config := range []string{
		validConfig,
		strings.Replace(validConfig, `"cost_model"`, `"cost_model","epsilon":-1`, 1),
		strings.Replace(validConfig, `{"handler":"inferrail"}`, `{"handler":"inferrail"},{"handler":"nonexistent"}`, 1),
		strings.Replace(validConfig, `"protocol":"inferrail"`, `"protocol":"inferrail","max_attempts":-1`, 1),
		strings.Replace(validConfig, `{"name":"m"`, `{"name":"r","tokenizer":{"name":"huggingface","path":"testdata/tokenizer"}},{"block_size":-1,"name":"m"`, 1),
		strings.Replace(validConfig, `{"name":"m"`, `{"name":"r","tokenizer":{"name":"huggingface","path":"testdata/tokenizer"}},{"tokenizer":{"name":"huggingface","path":"none"},"name":"m"`, 1),
	} {
		err := validate(t, []byte(config))
		if (err == nil) != (config == validConfig) {
			t.Errorf("validated with %v: %s", err, config)
		}
		if diff := cmp.Diff(unused, caddymodule.StateInUse()); diff != "" {
			t.Errorf("state is kept after %v:\n%s", err, diff)
		}
	}
}

// TestFailingReloadLeavesTheOldConfiguration tries configurations that cannot be provisioned or started. Everything of the
// old one goes on: it serves, explains, probes and keeps its state.
func TestFailingReloadLeavesTheOldConfiguration(t *testing.T) {
	f := newRecorded(t, 2)
	good := f.addresses
	config, admin := withAdmin(t, strings.Replace(f.caddyfile(), "probe_interval 100ms", "probe_interval 5ms", 1))
	load(t, config)
	long := `{"model":"sim","prompt":"` + strings.Repeat("word ", 100) + `"}`
	mustPost(t, f.url("/v1/completions"), long)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	state := caddymodule.StateInUse()

	// TLS to engines that have none: whoever used this transport would notice.
	f.addresses = []string{"https://" + good[0], "https://" + good[1]}
	cannotStart := strings.Replace(f.caddyfile(), "admin off", "admin "+strings.TrimPrefix(admin, "http://"), 1) +
		fmt.Sprintf("http://%s {\n\trespond hello\n}\n", taken.Addr())
	cannotStart = strings.Replace(cannotStart, "level ERROR", "level FATAL", 1)
	working := string(adapt(t, config))
	for range 6 { // apps start in any order
		for name, broken := range map[string]string{
			"cannot start":          string(adapt(t, cannotStart)),
			"cannot be provisioned": strings.Replace(working, `"name":"cost_model"`, `"name":"cost_model","epsilon":-1`, 1),
			"not understood":        strings.Replace(working, `"models":`, `"modles":[],"models":`, 1),
		} {
			if err := caddy.Load([]byte(broken), true); err == nil {
				t.Fatalf("loaded: %s", name)
			}
			http.DefaultClient.CloseIdleConnections() // the admin listener is another
			var a answer
			waitFor(t, "an answer", func() bool { // the port was shared for a moment: connections may be reset
				var err error
				a, err = post(t, http.DefaultClient, f.url("/v1/completions"), long)
				return err == nil
			})
			if a.status != http.StatusOK {
				t.Fatalf("%s: answered %d: %s", name, a.status, a.body)
			}
			if headerInt(t, a.header, "X-Inferrail-Cached-Tokens") == 0 {
				t.Errorf("%s: the index is lost", name)
			}
			if e := explain(t, admin, "/v1/completions", long); e.Winner == "" || len(e.Replicas) != 2 {
				t.Errorf("%s: explained %+v", name, e)
			}
			checkState(t, name, state)
			for _, e := range f.recorders {
				before := e.probed()
				waitFor(t, "probes to go on", func() bool { return e.probed() > before+1 })
			}
		}
	}
}

// TestMetricsOverReloads counts on after reloads, in one series each.
func TestMetricsOverReloads(t *testing.T) {
	f := newRecorded(t, 1)
	load(t, f.caddyfile())
	for i := range 5 {
		mustPost(t, f.url("/v1/completions"), prompt)
		settled(t)
		if i == 3 { // two handlers, two proxies, one app
			reload(t, f.caddyfile()+fmt.Sprintf("http://127.0.0.1:%d {\n\tinferrail %s\n}\n", freePorts(t, 1)[0], f.addresses[0]))
		} else {
			reload(t, f.caddyfile())
		}
		for _, name := range []string{
			"inferrail_requests_total", "inferrail_routing_decisions_total", "inferrail_tokenized_requests_total", "inferrail_request_duration_seconds",
		} {
			if n := metric(t, name); n != float64(i+1) {
				t.Errorf("%s is %v after %d requests", name, n, i+1)
			}
		}
		series := 0
		for s := range counters(t) {
			if strings.HasPrefix(s, "inferrail_replica_in_flight_requests") {
				series++
			}
		}
		if series != 1 {
			t.Errorf("%d series for one replica", series)
		}
	}
}

// TestRemovedReplica takes a replica out of the configuration while it serves a request: what is known of it stays until
// the request ends, and then goes.
func TestRemovedReplica(t *testing.T) {
	f := newRecorded(t, 2)
	config := strings.Replace(f.caddyfile(), "grace_period 2s", "grace_period 30s", 1)
	load(t, config)
	hold, open := gate(t)
	f.behave(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		<-hold
		_, _ = io.WriteString(w, "data: [DONE]\n\n")
	})
	res, err := http.Post(f.url("/v1/completions"), "application/json", strings.NewReader(`{"model":"sim","prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	removed := res.Header.Get("X-Inferrail-Replica")
	if metric(t, "inferrail_routing_decisions_total", "replica", removed) != 1 {
		t.Fatalf("the replica %s is not counted", removed)
	}
	var kept string
	for _, a := range f.addresses {
		if a != removed {
			kept = a
		}
	}
	f.addresses = []string{kept}
	reloaded := make(chan error, 1)
	next := adapt(t, strings.Replace(f.caddyfile(), "grace_period 2s", "grace_period 30s", 1))
	before := caddy.ActiveContext()
	go func() { reloaded <- caddy.Load(next, true) }()
	waitFor(t, "the new configuration", func() bool { return caddy.ActiveContext().Context != before.Context })
	if n := metric(t, "inferrail_replica_in_flight_requests", "replica", removed); n != 1 {
		t.Errorf("%v requests in flight at a removed replica that serves one", n)
	}
	open()
	body, err := io.ReadAll(res.Body)
	if err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream ended with %v: %q", err, body)
	}
	if err := <-reloaded; err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	waitFor(t, "the removed replica's series to go", func() bool {
		for series := range counters(t) {
			if strings.Contains(series, removed) {
				return false
			}
		}
		return true
	})
	checkState(t, "after the last request", map[string]int{"fleets": 1, "replicas": 1, "policies": 1, "tokenizers": 0, "metrics": 1})
	f.behave(says(200, wholeAnswer))
	if a := mustPost(t, f.url("/v1/completions"), prompt); a.header.Get("X-Inferrail-Replica") != kept {
		t.Errorf("routed to %q", a.header.Get("X-Inferrail-Replica"))
	}
}
