package caddymodule_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// startHostile starts a router with two models in front of one engine, and beside it a site with one model and small
// limits. It waits until the engine's probes and health checks have settled and counts the goroutines.
func startHostile(t *testing.T) (f, small *recorded, goroutines int) {
	t.Helper()
	f = newRecorded(t, 1)
	f.directive = "health_interval 50ms"
	small = &recorded{fleet: &fleet{router: freePorts(t, 1)[0]}, recorders: f.recorders}
	config := strings.Replace(f.caddyfile(), "probe_interval 100ms", "probe_interval 50ms\n\t\tmodel other", 1)
	config = strings.Replace(config, "grace_period 2s", "grace_period 2s\n\tservers {\n\t\tprotocols h1 h2 h2c\n\t}", 1)
	config += fmt.Sprintf("http://127.0.0.1:%d {\n\tinferrail %s {\n\t\tmodels inferrail/sim-8b\n\t\tmax_body_size 1KiB\n\t\tbody_timeout 200ms\n\t}\n}\n",
		small.router, f.addresses[0])
	load(t, config)
	waitFor(t, "probes", func() bool { return f.recorders[0].probed() > 5 })
	return f, small, runtime.NumGoroutine()
}

// h2cClient speaks HTTP/2 without TLS.
func h2cClient(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// request sends a request of any kind and reads the answer.
func request(t *testing.T, client *http.Client, method, url string, body io.Reader) answer {
	t.Helper()
	req, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, b}
}

// badBodies are refused with a status, a code and the name of the member that is to blame.
var badBodies = []struct {
	name, body   string
	status       int
	code, member string
}{
	{"nothing", ``, 400, "invalid_json", ""},
	{"space", " \r\n\t", 400, "invalid_json", ""},
	{"half an object", `{"model":"sim"`, 400, "invalid_json", ""},
	{"a word", `hello`, 400, "invalid_json", ""},
	{"an array", `[]`, 400, "invalid_json", ""},
	{"an array of requests", `[{"model":"sim","prompt":"x"}]`, 400, "invalid_json", ""},
	{"a string", `"model"`, 400, "invalid_json", ""},
	{"null", `null`, 400, "invalid_json", ""},
	{"a number", `1`, 400, "invalid_json", ""},
	{"two objects", `{"model":"sim"}{"model":"sim"}`, 400, "invalid_json", ""},
	{"a trailing comma", `{"model":"sim",}`, 400, "invalid_json", ""},
	{"single quotes", `{'model':'sim'}`, 400, "invalid_json", ""},
	{"a comment", `{"model":"sim"/* it */}`, 400, "invalid_json", ""},
	{"a control character", "{\"model\":\"sim\",\"prompt\":\"\x01\"}", 400, "invalid_json", ""},
	{"a zero byte at the end", "{\"model\":\"sim\"}\x00", 400, "invalid_json", ""},
	{"a bad escape", `{"model":"sim","prompt":"\x41"}`, 400, "invalid_json", ""},
	{"a short escape", `{"model":"sim","prompt":"\u12"}`, 400, "invalid_json", ""},
	{"invalid UTF-8", "{\"model\":\"sim\",\"prompt\":\"\xff\xfe\"}", 400, "invalid_json", ""},
	{"an encoded surrogate", "{\"model\":\"sim\",\"prompt\":\"\xed\xa0\x80\"}", 400, "invalid_json", ""},
	{"UTF-16", "{\x00\"\x00m\x00\"\x00}\x00", 400, "invalid_json", ""},
	{"a number with a leading zero", `{"model":"sim","n":01}`, 400, "invalid_json", ""},
	{"deep arrays", `{"model":"sim","prompt":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, 400, "invalid_json", ""},
	{"deep objects", `{"model":"sim","x":` + strings.Repeat(`{"a":`, 50_000) + `1` + strings.Repeat("}", 50_000) + `}`, 400, "invalid_json", ""},
	{"8 MiB of brackets", strings.Repeat("[", 8<<20), 400, "invalid_json", ""},
	{"8 MiB of brackets in an object", `{"model":"sim","prompt":` + strings.Repeat("[", 8<<20), 400, "invalid_json", ""},
	{"no model", `{"prompt":"x"}`, 400, "missing_model", "model"},
	{"a null model", `{"model":null,"prompt":"x"}`, 400, "missing_model", "model"},
	{"an empty model", `{"model":"","prompt":"x"}`, 400, "missing_model", "model"},
	{"a number for a model", `{"model":7,"prompt":"x"}`, 400, "invalid_type", "model"},
	{"an array for a model", `{"model":["sim"],"prompt":"x"}`, 400, "invalid_type", "model"},
	{"an object for a model", `{"model":{"sim":1},"prompt":"x"}`, 400, "invalid_type", "model"},
	{"true for a model", `{"model":true,"prompt":"x"}`, 400, "invalid_type", "model"},
	{"a good model, then a bad one", `{"model":"sim","model":7}`, 400, "invalid_type", "model"},
	{"an unknown model", `{"model":"gpt-5","prompt":"x"}`, 404, "model_not_found", "model"},
	{"a model in another case", `{"model":"SIM","prompt":"x"}`, 404, "model_not_found", "model"},
	{"a model with a space", `{"model":"sim ","prompt":"x"}`, 404, "model_not_found", "model"},
	{"a good model, then an unknown one", `{"model":"sim","model":"x"}`, 404, "model_not_found", "model"},
	{"a lone surrogate for a model", `{"model":"\ud800","prompt":"x"}`, 404, "model_not_found", "model"},
	{"a model of 1 MiB", `{"model":"` + strings.Repeat("é", 1<<19) + `"}`, 404, "model_not_found", "model"},
	{"a model with markup", `{"model":"<script>\n\"` + "`" + `"}`, 404, "model_not_found", "model"},
}

// TestBadInput sends what no engine should see: each is refused in the API's shape, and nothing is left behind.
func TestBadInput(t *testing.T) {
	f, small, goroutines := startHostile(t)
	h2 := h2cClient(t)
	for _, path := range []string{"/v1/chat/completions", "/v1/completions"} {
		for _, client := range []*http.Client{http.DefaultClient, h2} {
			for _, tc := range badBodies {
				if len(tc.body) > 64<<10 && path == "/v1/completions" {
					continue // once is enough for the slow ones
				}
				a := request(t, client, http.MethodPost, f.url(path), strings.NewReader(tc.body))
				checkRefusal(t, tc.name, a, tc.status, tc.code, tc.member)
			}
		}
	}
	t.Run("methods and paths", func(t *testing.T) { testMethods(t, f.fleet, http.DefaultClient) })
	t.Run("methods and paths over HTTP/2", func(t *testing.T) { testMethods(t, f.fleet, h2) })
	t.Run("size", func(t *testing.T) { testTooLarge(t, f.fleet, small.fleet, h2) })
	t.Run("slow and broken bodies", func(t *testing.T) { testBrokenBodies(t, small.fleet, h2) })
	if seen := f.take(); len(seen) > 0 {
		t.Errorf("%d requests reached the engine, the first %q", len(seen), seen[0].body)
	}
	h2.CloseIdleConnections()
	steady(t, goroutines)
}

// checkRefusal checks an error of the router's own.
func checkRefusal(t *testing.T, name string, a answer, status int, code, member string) {
	t.Helper()
	if a.status != status {
		t.Errorf("%s: answered %d, want %d: %.200q", name, a.status, status, a.body)
		return
	}
	if a.header.Get("X-Request-Id") == "" {
		t.Errorf("%s: no X-Request-Id", name)
	}
	if len(a.body) > 2<<10 {
		t.Errorf("%s: an error of %d bytes", name, len(a.body))
	}
	e := errorOf(t, a)
	param := ""
	if e.Param != nil {
		param = *e.Param
	}
	got := []string{e.Type, e.Code, param}
	if diff := cmp.Diff([]string{"invalid_request_error", code, member}, got); diff != "" {
		t.Errorf("%s: another error than expected (-want +got):\n%s", name, diff)
	}
}

func testMethods(t *testing.T, f *fleet, client *http.Client) {
	for _, tc := range []struct{ path, allow, methods string }{
		{"/v1/chat/completions", "POST", "GET PUT DELETE PATCH OPTIONS HEAD PROPFIND"},
		{"/v1/completions", "POST", "GET PUT DELETE PATCH OPTIONS HEAD PROPFIND"},
		{"/v1/models", "GET, HEAD", "POST PUT DELETE PATCH OPTIONS"},
		{"/health", "GET, HEAD", "POST PUT DELETE PATCH OPTIONS"},
	} {
		for method := range strings.FieldsSeq(tc.methods) {
			a := request(t, client, method, f.url(tc.path), nil)
			if got := a.header.Get("Allow"); got != tc.allow {
				t.Errorf("%s %s: Allow %q, want %q", method, tc.path, got, tc.allow)
			}
			if method == http.MethodHead {
				if a.status != 405 || len(a.body) != 0 {
					t.Errorf("HEAD %s: %d with %d bytes", tc.path, a.status, len(a.body))
				}
				continue
			}
			checkRefusal(t, method+" "+tc.path, a, 405, "method_not_allowed", "")
		}
	}
	for _, path := range []string{
		"/", "/v1", "/v1/", "/v1/chat/completions/", "/v1/chat", "/v1/embeddings", "/v1/models/sim", "/V1/models", "//v1/models",
		"/v1/%63ompletions2", "/v1/chat/../completionsx", "/inferrail/replicas", "/metrics",
	} {
		checkRefusal(t, path, request(t, client, http.MethodPost, f.url(path), strings.NewReader(`{"model":"sim"}`)), 404, "unknown_url", "")
		checkRefusal(t, path, request(t, client, http.MethodGet, f.url(path), nil), 404, "unknown_url", "")
	}
	for _, path := range []string{"/v1/models", "/health"} {
		get := request(t, client, http.MethodGet, f.url(path), nil)
		head := request(t, client, http.MethodHead, f.url(path), nil)
		if get.status != 200 || head.status != 200 || len(get.body) == 0 || len(head.body) != 0 ||
			get.header.Get("Content-Length") != head.header.Get("Content-Length") || head.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: GET %d with %d bytes, HEAD %d with %d", path, get.status, len(get.body), head.status, len(head.body))
		}
	}
}

// zeros is a body of n bytes whose length the client does not tell.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { return len(p), nil }

// testTooLarge sends 100 MB: announced, unannounced, and with the question first whether they are wanted.
func testTooLarge(t *testing.T, f, small *fleet, h2 *http.Client) {
	const size = 100_000_000
	path := "/v1/chat/completions"
	announced := func(n int64) *http.Request {
		req, err := http.NewRequest(http.MethodPost, f.url(path), zeros(n))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = n
		return req
	}
	do := func(client *http.Client, req *http.Request) answer {
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer{res.StatusCode, res.Header, body}
	}
	checkRefusal(t, "announced", do(http.DefaultClient, announced(size)), 413, "body_too_large", "")
	checkRefusal(t, "announced over HTTP/2", do(h2, announced(size)), 413, "body_too_large", "")
	checkRefusal(t, "unannounced", request(t, http.DefaultClient, http.MethodPost, f.url(path), zeros(size)), 413, "body_too_large", "")
	checkRefusal(t, "unannounced over HTTP/2", request(t, h2, http.MethodPost, f.url(path), zeros(size)), 413, "body_too_large", "")

	// Expect: 100-continue is answered with the refusal itself, before any body.
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, size)
	a, in := rawAnswer(t, f, head, nil)
	checkRefusal(t, "expecting to continue", a, 413, "body_too_large", "")
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("the connection goes on after a refusal whose body was not sent: %v", err)
	}

	if n := metric(t, "inferrail_request_errors_total", "reason", "body_too_large"); n != 5 {
		t.Errorf("%v refusals counted of 5", n)
	}

	// The limit itself: a byte more is refused, as many are read.
	full := `{"model":"x","prompt":"` + strings.Repeat("a", 1<<10-len(`{"model":"x","prompt":""}`)) + `"}`
	checkRefusal(t, "at the limit", request(t, http.DefaultClient, http.MethodPost, small.url(path), strings.NewReader(full)), 404, "model_not_found", "model")
	checkRefusal(t, "unannounced at the limit", request(t, http.DefaultClient, http.MethodPost, small.url(path), io.MultiReader(strings.NewReader(full))), 404, "model_not_found", "model")
	checkRefusal(t, "over the limit", request(t, http.DefaultClient, http.MethodPost, small.url(path), strings.NewReader(full+" ")), 413, "body_too_large", "")
	checkRefusal(t, "unannounced over the limit", request(t, http.DefaultClient, http.MethodPost, small.url(path), io.MultiReader(strings.NewReader(full+" "))), 413, "body_too_large", "")
}

// testBrokenBodies sends bodies that stop, break off or are framed wrongly.
func testBrokenBodies(t *testing.T, f *fleet, h2 *http.Client) {
	const head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
	ends := func(name string, in *bufio.Reader) {
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection goes on: %v", name, err)
		}
	}
	for name, raw := range map[string]string{
		"a body that stops":           head + "Content-Length: 1000\r\n\r\n{\"model\":",
		"a body that never begins":    head + "Content-Length: 1000\r\n\r\n",
		"a chunk that stops":          head + "Transfer-Encoding: chunked\r\n\r\n100\r\n{\"model\":",
		"chunks that stop":            head + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
		"expecting, then not sending": head + "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n",
	} {
		a, in := rawAnswer(t, f, raw, nil)
		if a.status == http.StatusContinue {
			a = readRaw(t, in)
		}
		checkRefusal(t, name, a, 408, "body_timeout", "")
		ends(name, in)
	}
	a, in := rawAnswer(t, f, head+"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", nil)
	checkRefusal(t, "a chunk without a size", a, 400, "body_unreadable", "")
	ends("a chunk without a size", in)

	// A client that says that no more comes still listens.
	a, in = rawAnswer(t, f, head+"Content-Length: 1000\r\n\r\n{\"model\":", func(c net.Conn) {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	})
	checkRefusal(t, "a body that ends early", a, 400, "body_incomplete", "")
	ends("a body that ends early", in)

	left := metric(t, "inferrail_request_errors_total", "reason", "body_incomplete")
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", f.router))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, head+"Content-Length: 1000\r\n\r\n{\"model\":"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	waitFor(t, "the client that left to be noticed", func() bool {
		return metric(t, "inferrail_request_errors_total", "reason", "body_incomplete") > left
	})

	ctx, cancel := context.WithCancel(t.Context())
	body, feed := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url("/v1/chat/completions"), body)
	if err != nil {
		t.Fatal(err)
	}
	gone := metric(t, "inferrail_request_errors_total", "reason", "client_left")
	done := make(chan error, 1)
	go func() {
		res, err := h2.Do(req)
		if err == nil {
			res.Body.Close()
		}
		done <- err
	}()
	if _, err := io.WriteString(feed, `{"model":`); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("a request was answered that its client had cancelled")
	}
	feed.Close()
	waitFor(t, "the HTTP/2 client that left to be noticed", func() bool {
		return metric(t, "inferrail_request_errors_total", "reason", "client_left") > max(gone, 0) ||
			metric(t, "inferrail_request_errors_total", "reason", "body_timeout") > 5
	})
}

// TestOnlyModelMayBeOmitted serves requests without a model where there is one, and lists what is served.
func TestOnlyModelMayBeOmitted(t *testing.T) {
	f, small, _ := startHostile(t)
	for _, body := range []string{`{"prompt":"x"}`, `{"model":null,"prompt":"x"}`, `{"model":"","prompt":"x"}`} {
		a := mustPost(t, small.url("/v1/completions"), body)
		seen := f.take()
		if len(seen) != 1 || string(seen[0].body) != body || a.header.Get("X-Request-Id") == "" {
			t.Errorf("%s: the engine received %v", body, seen)
		}
	}
	// A model that the app knows and this site does not serve is unknown here.
	checkRefusal(t, "another site's model", request(t, http.DefaultClient, http.MethodPost, small.url("/v1/completions"),
		strings.NewReader(`{"model":"other"}`)), 404, "model_not_found", "model")
	for _, tc := range []struct {
		f    *recorded
		want []string
	}{{f, []string{"other", "inferrail/sim-8b", "sim"}}, {small, []string{"inferrail/sim-8b", "sim"}}} {
		if diff := cmp.Diff(tc.want, modelIDs(t, request(t, http.DefaultClient, http.MethodGet, tc.f.url("/v1/models"), nil))); diff != "" {
			t.Errorf("other models than expected (-want +got):\n%s", diff)
		}
	}
}
