package caddymodule_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sighting is a request as an engine received it.
type sighting struct {
	order    int64 // among the requests of all engines
	engine   string
	path     string
	header   http.Header
	length   int64 // Content-Length; -1 without
	encoding []string
	body     []byte
}

var sightings atomic.Int64

// recorder is an engine that keeps what it is sent and answers as it is told.
type recorder struct {
	addr string

	mu     sync.Mutex
	seen   []sighting
	probes int // requests for the metrics page
	answer func(w http.ResponseWriter, r *http.Request)
}

// newRecorder starts an engine that answers every inference request with wholeAnswer until told otherwise.
func newRecorder(t testing.TB) *recorder {
	t.Helper()
	e := &recorder{answer: func(w http.ResponseWriter, _ *http.Request) { writeAnswer(w) }}
	s := httptest.NewServer(e)
	e.addr = s.Listener.Addr().String()
	t.Cleanup(s.Close)
	return e
}

const wholeAnswer = `{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}`

func writeAnswer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, wholeAnswer)
}

func (e *recorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health", "/metrics", "/v1/models":
		if r.URL.Path == "/metrics" {
			e.mu.Lock()
			e.probes++
			e.mu.Unlock()
			for _, name := range []string{
				"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
			} {
				_, _ = fmt.Fprintf(w, "vllm:%s{model_name=\"m\"} 0\n", name)
			}
			_, _ = io.WriteString(w, "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"16385\"} 1\nprocess_start_time_seconds 1\n")
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	e.mu.Lock()
	e.seen = append(e.seen, sighting{sightings.Add(1), e.addr, r.URL.RequestURI(), r.Header.Clone(), r.ContentLength, r.TransferEncoding, body})
	answer := e.answer
	e.mu.Unlock()
	answer(w, r)
}

// behave tells the engine how to answer from now on.
func (e *recorder) behave(answer func(w http.ResponseWriter, r *http.Request)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

// take returns what was received since the last call.
func (e *recorder) take() []sighting {
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.seen
	e.seen = nil
	return seen
}

// probed counts the router's probes.
func (e *recorder) probed() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.probes
}

// answers gives an answer after the other, the last one for ever.
func answers(list ...func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request) {
	var mu sync.Mutex
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		a := list[min(n, len(list)-1)]
		n++
		mu.Unlock()
		a(w, r)
	}
}

// gate is a channel that open closes; the end of the test closes it, too, so that nothing waits for ever.
func gate(t testing.TB) (shut <-chan struct{}, open func()) {
	c := make(chan struct{})
	open = sync.OnceFunc(func() { close(c) })
	t.Cleanup(open)
	return c, open
}

// says is an engine's answer with a status and a body.
func says(status int, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Engine", "says")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// breaks writes raw bytes on the connection and then closes it, with a reset if asked.
func breaks(raw string, reset bool) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, raw)
		if reset {
			_ = c.(*net.TCPConn).SetLinger(0)
		}
	}
}

// recorded is a router in front of recorders.
type recorded struct {
	*fleet
	recorders []*recorder
}

// newRecorded prepares a router before n recorders; start it with load or startRecorded.
func newRecorded(t testing.TB, n int) *recorded {
	t.Helper()
	f := &recorded{fleet: &fleet{router: freePorts(t, 1)[0], directive: "policy cost_model"}}
	for range n {
		e := newRecorder(t)
		f.recorders = append(f.recorders, e)
		f.addresses = append(f.addresses, e.addr)
	}
	return f
}

// take returns what any engine received.
func (f *recorded) take() []sighting {
	var all []sighting
	for _, e := range f.recorders {
		all = append(all, e.take()...)
	}
	return all
}

// behave tells every engine how to answer; the engines take the answers of one list in turn.
func (f *recorded) behave(answer func(http.ResponseWriter, *http.Request)) {
	for _, e := range f.recorders {
		e.behave(answer)
	}
}

// apiError is the error of an answer in OpenAI's shape; the test fails if the answer has another.
type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

func errorOf(t testing.TB, a answer) apiError {
	t.Helper()
	var v struct {
		Error *apiError `json:"error"`
	}
	d := json.NewDecoder(strings.NewReader(string(a.body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || v.Error == nil || v.Error.Message == "" || d.More() {
		t.Fatalf("%d: not an error of the API: %v: %q", a.status, err, a.body)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("Content-Type %q", got)
	}
	if got := a.header.Get("X-Inferrail-Reason"); got != v.Error.Code {
		t.Errorf("X-Inferrail-Reason %q, the error's code %q", got, v.Error.Code)
	}
	return *v.Error
}

// rawAnswer writes bytes on a new connection, calls more if it is not nil, and reads one response.
func rawAnswer(t testing.TB, f *fleet, raw string, more func(net.Conn)) (answer, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.router))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	if more != nil {
		more(c)
	}
	in := bufio.NewReader(c)
	return readRaw(t, in), in
}

// readRaw reads one response, interim ones included.
func readRaw(t testing.TB, in *bufio.Reader) answer {
	t.Helper()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("reading the response: %v", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading the response's body: %v", err)
	}
	return answer{res.StatusCode, res.Header, body}
}

// steady waits until the gauges are zero and no more goroutines run than before.
func steady(t testing.TB, goroutines int) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections()
	waitFor(t, "gauges to return to zero", func() bool {
		return metric(t, "inferrail_replica_in_flight_requests") == 0 &&
			metric(t, "inferrail_replica_in_flight_prompt_tokens") == 0 &&
			metric(t, "inferrail_replica_queued_prefill_seconds") == 0
	})
	// Probes keep one pooled connection or two, of three goroutines each; what leaks for good is goleak's to find at the end.
	const pooled = 6
	got := 0
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if got = runtime.NumGoroutine(); got <= goroutines+pooled {
			return
		}
	}
	stacks := make([]byte, 1<<20)
	t.Errorf("%d goroutines, %d before:\n%s", got, goroutines, stacks[:runtime.Stack(stacks, true)])
}

// modelIDs are the ids of a model list.
func modelIDs(t testing.TB, a answer) []string {
	t.Helper()
	var list struct {
		Object string
		Data   []struct{ ID, Object string }
	}
	if err := json.Unmarshal(a.body, &list); err != nil || list.Object != "list" {
		t.Fatalf("not a list: %v: %s", err, a.body)
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}
