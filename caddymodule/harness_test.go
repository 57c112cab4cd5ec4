package caddymodule_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"go.uber.org/goleak"

	_ "github.com/inferrail/inferrail/caddymodule"
	_ "github.com/inferrail/inferrail/simulator"
)

// TestMain fails the run when goroutines outlive the tests.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// freePorts gives n loopback ports that nothing listens on.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// adapt turns a Caddyfile into JSON.
func adapt(t testing.TB, config string) []byte {
	t.Helper()
	out, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt(caddyfile.Format([]byte(config)), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("adapting: %v\n%s", err, config)
	}
	for _, w := range warnings {
		t.Logf("adapting: %v", w)
	}
	return out
}

// load runs a Caddyfile; the configuration stops with the test.
func load(t testing.TB, config string) {
	t.Helper()
	if err := caddy.Load(adapt(t, config), false); err != nil {
		t.Fatalf("loading: %v\n%s", err, config)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Errorf("stopping: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
}

// fleet is a router with simulated engines in this process.
type fleet struct {
	router  int
	engines []int
	// Lines of the router's directive, of every simulator, of the model's block and of the global option.
	directive, simulator, model, app string
	// before is put in front of the engines' addresses, such as those of breakable proxies.
	addresses []string
}

// newFleet makes a fleet of n engines that answer as fast as they can.
func newFleet(t testing.TB, n int) *fleet {
	t.Helper()
	ports := freePorts(t, n+1)
	f := &fleet{router: ports[0], engines: ports[1:], directive: "policy cost_model", simulator: "zero_latency"}
	for _, p := range f.engines {
		f.addresses = append(f.addresses, fmt.Sprintf("127.0.0.1:%d", p))
	}
	return f
}

// caddyfile is the fleet's configuration.
func (f *fleet) caddyfile() string {
	var b strings.Builder
	fmt.Fprintf(&b, `{
	admin off
	persist_config off
	auto_https off
	storage_clean_interval off
	grace_period 2s
	log {
		level ERROR
	}
	inferrail {
		probe_interval 100ms
		%s
		model inferrail/sim-8b {
			alias sim
			tokenizer sim
			%s
		}
	}
}
http://127.0.0.1:%d {
	inferrail %s {
		%s
	}
}
`, f.app, f.model, f.router, strings.Join(f.addresses, " "), f.directive)
	for _, p := range f.engines {
		fmt.Fprintf(&b, "http://127.0.0.1:%d {\n\tvllm_simulator inferrail/sim-8b {\n\t\tenable_prompt_tokens_details\n\t\t%s\n\t}\n}\n",
			p, f.simulator)
	}
	return b.String()
}

func (f *fleet) url(path string) string { return fmt.Sprintf("http://127.0.0.1:%d%s", f.router, path) }

// start loads the configuration and waits until every engine has reported.
func (f *fleet) start(t testing.TB) {
	t.Helper()
	load(t, f.caddyfile())
	waitFor(t, "the engines' reports", func() bool {
		for _, a := range f.addresses {
			if metric(t, "inferrail_replica_engine_report_age_seconds", "replica", a) < 0 {
				return false
			}
		}
		return true
	})
}

// waitFor polls until ok or fails after a long time, for what happens in the background.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

// metric sums the values of a family's series that carry the label pairs; -1 if there is none.
func metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	ctx := caddy.ActiveContext()
	families, err := ctx.GetMetricsRegistry().Gather()
	if err != nil {
		t.Fatalf("gathering metrics: %v", err)
	}
	sum, found := 0.0, false
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			for i := 0; i < len(labels); i += 2 {
				match := false
				for _, l := range m.GetLabel() {
					match = match || l.GetName() == labels[i] && l.GetValue() == labels[i+1]
				}
				if !match {
					continue series
				}
			}
			found = true
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	if !found {
		return -1
	}
	return sum
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// post sends a body and reads the whole response.
func post(t testing.TB, client *http.Client, url, body string) (answer, error) {
	t.Helper()
	res, err := client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b}, err
}

// mustPost is post for requests that must be answered 200.
func mustPost(t testing.TB, url, body string) answer {
	t.Helper()
	a, err := post(t, http.DefaultClient, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusOK {
		t.Fatalf("POST %s: %d %s\n%s", url, a.status, a.body, body)
	}
	return a
}

// usage is what an answer says of its tokens.
type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// usageOf reads the usage of a JSON answer or of the last event of a stream that has one.
func usageOf(t testing.TB, a answer) usage {
	t.Helper()
	var found usage
	docs := [][]byte{a.body}
	if strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		docs = nil
		for line := range bytes.Lines(a.body) {
			if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
				docs = append(docs, append([]byte("{"), data...))
			}
		}
	}
	for _, d := range docs {
		var v struct {
			Usage *usage `json:"usage"`
		}
		if err := json.Unmarshal(d, &v); err != nil {
			t.Fatalf("reading %s: %v", d, err)
		}
		if v.Usage != nil {
			found = *v.Usage
		}
	}
	return found
}

// breakable is a TCP relay in front of an engine that can be cut like the cable of a dying machine.
type breakable struct {
	addr   string
	target string

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newBreakable(t testing.TB, target string) *breakable {
	t.Helper()
	b := &breakable{target: target, conns: make(map[net.Conn]bool)}
	b.mend(t)
	t.Cleanup(func() { b.cut(); b.wg.Wait() })
	return b
}

// mend listens, at the same address after a cut.
func (b *breakable) mend(t testing.TB) {
	t.Helper()
	at := b.addr
	if at == "" {
		at = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	b.l, b.addr = l, l.Addr().String()
	b.mu.Unlock()
	b.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.relay(c) })
		}
	})
}

func (b *breakable) relay(c net.Conn) {
	up, err := net.Dial("tcp", b.target)
	if err != nil {
		c.Close()
		return
	}
	b.mu.Lock()
	b.conns[c], b.conns[up] = true, true
	b.mu.Unlock()
	var wg sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		wg.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			pair[0].Close()
			pair[1].Close()
		})
	}
	wg.Wait()
	b.mu.Lock()
	delete(b.conns, c)
	delete(b.conns, up)
	b.mu.Unlock()
}

// cut resets every connection and stops listening.
func (b *breakable) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.l.Close()
	for c := range b.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.Close()
	}
}

// textOf is the generated text of an answer.
func textOf(t testing.TB, a answer) string {
	t.Helper()
	var text strings.Builder
	read := func(doc []byte) {
		var v struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
		}
		if err := json.Unmarshal(doc, &v); err != nil {
			t.Fatalf("reading %s: %v", doc, err)
		}
		for _, c := range v.Choices {
			text.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
	}
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		read(a.body)
		return text.String()
	}
	for line := range bytes.Lines(a.body) {
		if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok {
			read(append([]byte("{"), data...))
		}
	}
	return text.String()
}

// metricsOfEngines sums the engines' prefix cache hits.
func metricsOfEngines(t testing.TB, f *fleet) int {
	t.Helper()
	sum := 0
	for _, p := range f.engines {
		res, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", p))
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(page) {
			if !bytes.HasPrefix(line, []byte("vllm:prefix_cache_hits_total{")) {
				continue
			}
			var v float64
			if _, err := fmt.Sscanf(string(line[bytes.LastIndexByte(line, ' ')+1:]), "%g", &v); err != nil {
				t.Fatalf("reading %s: %v", line, err)
			}
			sum += int(v)
		}
	}
	return sum
}

// get fetches a page.
func get(url string) (answer, error) {
	res, err := http.Get(url)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b}, err
}
