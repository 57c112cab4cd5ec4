package caddymodule_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// flushThen writes a head and some of a body, and then breaks the connection.
func flushThen(some string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, some)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
}

const prompt = `{"model":"sim","prompt":"the quick brown fox"}`

// TestRetries lets the first engine fail in every way that hides nothing from the client: another engine answers.
func TestRetries(t *testing.T) {
	f := patient(t, 3, "transport inferrail {\nkeepalive off\n}") // what breaks on a kept connection may be the connection's age
	for name, fails := range map[string]func(http.ResponseWriter, *http.Request){
		"closed before answering":     breaks("", false),
		"reset before answering":      breaks("", true),
		"reset in the head":           breaks("HTTP/1.1 200 OK\r\nContent-Ty", true),
		"closed in the head":          breaks("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n", false),
		"not HTTP":                    breaks("SSH-2.0-OpenSSH_9.9\r\n", false),
		"a status that is none":       breaks("HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n", false),
		"a status beyond all classes": breaks("HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n", false),
		"502":                         says(502, "bad gateway"),
		"503":                         says(503, "busy"),
		"504":                         says(504, "timeout"),
		"503 with a long body":        says(503, strings.Repeat("busy ", 1<<16)),
		"503 with a body that stalls": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"a stream's head, then cut":             flushThen(""),
		"a stream's head, then reset":           breaks("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", true),
		"an announced body that does not begin": breaks("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n", false),
	} {
		t.Run(name, func(t *testing.T) {
			before := max(metric(t, "inferrail_upstream_retries_total"), 0)
			for failures := range 3 {
				list := make([]func(http.ResponseWriter, *http.Request), failures, failures+1)
				for i := range list {
					list[i] = fails
				}
				f.behave(answers(append(list, func(w http.ResponseWriter, _ *http.Request) { writeAnswer(w) })...))
				a := mustPost(t, f.url("/v1/completions"), prompt)
				seen := f.take()
				engines := make(map[string]bool)
				for _, s := range seen {
					engines[s.engine] = true
				}
				slices.SortFunc(seen, func(a, b sighting) int { return cmp.Compare(a.order, b.order) })
				if string(a.body) != wholeAnswer || len(seen) != failures+1 || len(engines) != len(seen) {
					t.Errorf("%d failures: %d attempts at %d engines, answered %q", failures, len(seen), len(engines), a.body)
				}
				if last := seen[len(seen)-1].engine; a.header.Get("X-Inferrail-Replica") != last || len(a.header.Values("X-Inferrail-Replica")) != 1 {
					t.Errorf("the answer names %q, it came from %s", a.header.Values("X-Inferrail-Replica"), last)
				}
			}
			if got := metric(t, "inferrail_upstream_retries_total") - before; got != 3 {
				t.Errorf("%v retries counted, want 3", got)
			}
		})
	}
	settled(t)
}

// TestStaleConnections has an engine that closes a kept connection as a request arrives on it, as servers do with idle ones:
// it is asked again on a new connection, and no attempt is used up. A connection that breaks within an answer is not stale.
func TestStaleConnections(t *testing.T) {
	f := patient(t, 1, "lb_retries 0")
	serve := says(200, wholeAnswer)
	for range 5 {
		mustPost(t, f.url("/v1/completions"), prompt) // on a connection that is kept
		f.behave(answers(breaks("", false), serve))
		mustPost(t, f.url("/v1/completions"), prompt)
		if seen := f.take(); len(seen) != 3 || string(seen[1].body) != string(seen[2].body) {
			t.Errorf("the engine received %d requests, want 3", len(seen))
		}
	}
	f.behave(answers(breaks("HTTP/1.1 200 O", false), serve))
	a, err := post(t, http.DefaultClient, f.url("/v1/completions"), prompt)
	if seen := f.take(); err != nil || a.status != 502 || len(seen) != 1 {
		t.Errorf("sent %d times, answered %d, %v", len(seen), a.status, err)
	}
	if n := metric(t, "inferrail_upstream_retries_total"); n > 0 {
		t.Errorf("%v retries counted", n)
	}
	settled(t)
}

// settled waits until no request is counted as under way.
func settled(t *testing.T) {
	t.Helper()
	waitFor(t, "counters to return to zero", func() bool {
		return metric(t, "inferrail_replica_in_flight_requests") == 0 && metric(t, "inferrail_replica_queued_prefill_seconds") == 0
	})
}

// TestRefusedConnections has an engine that is not there.
func TestRefusedConnections(t *testing.T) {
	f := newRecorded(t, 1)
	dead := fmt.Sprintf("127.0.0.1:%d", freePorts(t, 1)[0])
	f.addresses = append([]string{dead}, f.addresses...)
	f.directive = "policy round_robin\nmax_fails 1000000\nhealth_fails 1000000"
	load(t, f.caddyfile())
	for range 6 {
		mustPost(t, f.url("/v1/completions"), prompt)
	}
	if n := metric(t, "inferrail_upstream_retries_total"); n < 2 {
		t.Errorf("%v retries; the test shows nothing", n)
	}
	if n := len(f.take()); n != 6 {
		t.Errorf("%d requests reached the engine, want 6", n)
	}
	settled(t)
}

// TestExhaustedAttempts lets every engine fail: the last refusal is handed on as it is, a broken connection becomes an
// error of the router's.
func TestExhaustedAttempts(t *testing.T) {
	for _, engines := range []int{1, 3} {
		t.Run(strconv.Itoa(engines), func(t *testing.T) {
			f := patient(t, engines)
			for _, status := range []int{502, 503, 504} {
				f.behave(says(status, fmt.Sprintf(`{"object":"error", "code":%d}`, status)))
				a, err := post(t, http.DefaultClient, f.url("/v1/completions"), prompt)
				if err != nil {
					t.Fatal(err)
				}
				if a.status != status || string(a.body) != fmt.Sprintf(`{"object":"error", "code":%d}`, status) ||
					a.header.Get("X-Engine") != "says" || a.header.Get("X-Inferrail-Reason") != "" {
					t.Errorf("%d was handed on as %d %v %s", status, a.status, a.header, a.body)
				}
				if seen := f.take(); len(seen) != 3 {
					t.Errorf("%d attempts, want 3", len(seen))
				}
			}
			f.behave(breaks("", false))
			a, err := post(t, http.DefaultClient, f.url("/v1/completions"), prompt)
			if err != nil {
				t.Fatal(err)
			}
			if e := errorOf(t, a); a.status != 502 || e.Code != "engine_unreachable" || e.Type != "server_error" || a.header.Get("X-Request-Id") == "" {
				t.Errorf("answered %d %s", a.status, a.body)
			}
			settled(t)
		})
	}
}

// TestAnswersThatAreNotRetried hands on what an engine decided, byte by byte, and asks no other.
func TestAnswersThatAreNotRetried(t *testing.T) {
	f := patient(t, 3)
	for _, status := range []int{200, 400, 401, 404, 413, 422, 429, 500, 501, 505} {
		body := fmt.Sprintf("{ \"error\" : \"of the engine\", \"code\":%d }\n", status)
		f.behave(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Retry-After", "7")
			says(status, body)(w, r)
		})
		a, err := post(t, http.DefaultClient, f.url("/v1/chat/completions"), `{"model":"sim","messages":[{"role":"user","content":"hi"}]}`)
		if err != nil {
			t.Fatal(err)
		}
		if a.status != status || string(a.body) != body || a.header.Get("Retry-After") != "7" || a.header.Get("X-Inferrail-Reason") != "" {
			t.Errorf("%d was handed on as %d %v %q", status, a.status, a.header, a.body)
		}
		if seen := f.take(); len(seen) != 1 {
			t.Errorf("%d: %d attempts, want 1", status, len(seen))
		}
	}
	settled(t)
}

// TestBegunAnswersBreakVisibly cuts answers after their first byte: the client sees that they are not whole.
func TestBegunAnswersBreakVisibly(t *testing.T) {
	f := patient(t, 2)
	const begun = "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\n"
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"a stream":          flushThen(begun),
		"an announced body": breaks(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", 10*len(begun), begun), false),
	} {
		f.behave(answer)
		a, err := post(t, http.DefaultClient, f.url("/v1/completions"), `{"model":"sim","prompt":"x","stream":true}`)
		if err == nil || a.status != 200 || string(a.body) != begun {
			t.Errorf("%s: %d, %v, %q", name, a.status, err, a.body)
		}
		if seen := f.take(); len(seen) != 1 {
			t.Errorf("%s: sent %d times", name, len(seen))
		}
	}
	if n := metric(t, "inferrail_requests_total", "status", "aborted"); n != 2 {
		t.Errorf("%v aborted requests counted, want 2", n)
	}
	settled(t)
}

// TestEarlyHead passes the head on before anything is computed, and so cannot move a request that then breaks.
func TestEarlyHead(t *testing.T) {
	f := patient(t, 2, "transport inferrail {\nearly_head\n}")
	goOn, open := gate(t)
	f.behave(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-goOn
		panic(http.ErrAbortHandler)
	})
	res, err := http.Post(f.url("/v1/completions"), "application/json", strings.NewReader(`{"model":"sim","prompt":"x","stream":true}`))
	open()
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil || len(b) > 0 || res.StatusCode != 200 {
		t.Errorf("%s: %q, %v", res.Status, b, err)
	}
	if seen := f.take(); len(seen) != 1 {
		t.Errorf("sent %d times", len(seen))
	}
	settled(t)
}

// TestIndexFollowsOutcomes asks what is predicted for a prompt after it was sent once: nothing if the engine refused it or
// broke before the first byte, its blocks if it was served.
func TestIndexFollowsOutcomes(t *testing.T) {
	f := patient(t, 1, "lb_retries 0")
	for i, tc := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		kept   bool
	}{
		{"served", says(200, wholeAnswer), true},
		{"served in a stream", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\"}]}\n\ndata: [DONE]\n\n")
		}, true},
		{"broken off after the first byte", flushThen("data: {}\n\n"), true},
		{"broken off before the first byte", flushThen(""), false},
		{"closed", breaks("", false), false},
		{"reset in the head", breaks("HTTP/1.1 200", true), false},
		{"400", says(400, "{}"), false},
		{"404", says(404, "{}"), false},
		{"429", says(429, "{}"), false},
		{"500", says(500, "{}"), false},
		{"503", says(503, "{}"), false},
		{"204", says(204, ""), false},
		{"304", says(304, ""), false},
		{"an empty 200", says(200, ""), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := fmt.Sprintf(`{"model":"sim","prompt":"case %d %s"}`, i, strings.Repeat(fmt.Sprintf("word%d ", i), 100))
			predict := func(answer func(http.ResponseWriter, *http.Request)) int {
				f.behave(answer)
				a, err := post(t, http.DefaultClient, f.url("/v1/completions"), body)
				if err != nil && a.status != 200 {
					t.Fatal(err)
				}
				settled(t)
				return headerInt(t, a.header, "X-Inferrail-Cached-Tokens")
			}
			if n := predict(tc.answer); n != 0 {
				t.Errorf("a new prompt is predicted to be cached: %d tokens", n)
			}
			if n := predict(says(200, wholeAnswer)); (n > 0) != tc.kept {
				t.Errorf("%d tokens are predicted to be cached, kept %t", n, tc.kept)
			}
			if n := predict(says(200, wholeAnswer)); n == 0 {
				t.Error("a prompt that was served is not predicted to be cached")
			}
		})
	}
}

// TestNoReplica has no engine that is healthy: the answer says why and when to come back.
func TestNoReplica(t *testing.T) {
	f := &fleet{router: freePorts(t, 1)[0], directive: "health_interval 20ms\nhealth_fails 1"}
	for _, p := range freePorts(t, 2) {
		f.addresses = append(f.addresses, fmt.Sprintf("127.0.0.1:%d", p))
	}
	load(t, f.caddyfile())
	waitFor(t, "the engines to be found dead", func() bool {
		res, err := http.Get(f.url("/health"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode == http.StatusServiceUnavailable
	})
	a, err := post(t, http.DefaultClient, f.url("/v1/completions"), prompt)
	if err != nil {
		t.Fatal(err)
	}
	e := errorOf(t, a)
	if a.status != 503 || e.Code != "no_replica" || e.Type != "server_error" || a.header.Get("Retry-After") != "1" ||
		a.header.Get("X-Request-Id") == "" || a.header.Get("X-Inferrail-Replica") != "" {
		t.Errorf("answered %d %v %s", a.status, a.header, a.body)
	}
	if n := metric(t, "inferrail_request_errors_total", "reason", "no_replica"); n != 1 {
		t.Errorf("%v errors counted, want 1", n)
	}
}

// TestClientLeaves ends requests from the client's side while an engine works on them: the engine is told, and every
// counter returns.
func TestClientLeaves(t *testing.T) {
	f := newRecorded(t, 1)
	config := strings.Replace(f.caddyfile(), "grace_period 2s", "grace_period 2s\n\tservers {\n\t\tprotocols h1 h2 h2c\n\t}", 1)
	load(t, config)
	clients := map[string]*http.Client{"HTTP/1.1": http.DefaultClient, "HTTP/2": h2cClient(t)}
	left := 0
	for _, stage := range []string{"nothing sent", "head sent", "body begun"} {
		for _, stream := range []bool{false, true} {
			for proto, client := range clients {
				t.Run(fmt.Sprintf("%s, stream %t, %s", stage, stream, proto), func(t *testing.T) {
					leave(t, f, client, stage, stream)
					left++
				})
			}
		}
	}
	waitFor(t, "the disconnects to be counted", func() bool {
		return metric(t, "inferrail_client_disconnects_total") == float64(left) &&
			metric(t, "inferrail_requests_total", "status", "cancelled") == float64(left)
	})
}

// leave sends a request, cancels it when the engine is at the stage, and waits until the engine sees that.
func leave(t *testing.T, f *recorded, client *http.Client, stage string, stream bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	f.behave(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		switch stage {
		case "nothing sent":
			cancel()
		case "head sent":
			w.(http.Flusher).Flush()
			cancel()
		case "body begun": // the client cancels
			_, _ = io.WriteString(w, "data: {}\n\n")
			w.(http.Flusher).Flush()
		}
		<-r.Context().Done()
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url("/v1/completions"),
		strings.NewReader(fmt.Sprintf(`{"model":"sim","prompt":"x","stream":%t}`, stream)))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err == nil {
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Errorf("reading the first bytes: %v", err)
		}
		cancel()
		res.Body.Close()
	}
	if (err == nil) != (stage == "body begun") {
		t.Errorf("the request ended with %v", err)
	}
	waitFor(t, "the engine to be told", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	settled(t)
	if n := len(f.take()); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
}
