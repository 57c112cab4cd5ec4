package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// roundTrip is a transport without a network, for clients in virtual time.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// slowBody yields each part after its delay.
type slowBody struct {
	ctx    context.Context
	parts  []string
	delays []time.Duration
}

func (b *slowBody) Read(p []byte) (int, error) {
	if len(b.parts) == 0 {
		return 0, io.EOF
	}
	if err := wait(b.ctx, b.delays[0]); err != nil {
		return 0, err
	}
	n := copy(p, b.parts[0])
	if b.delays[0] = 0; n == len(b.parts[0]) {
		b.parts, b.delays = b.parts[1:], b.delays[1:]
	} else {
		b.parts[0] = b.parts[0][n:]
	}
	return n, nil
}

func (b *slowBody) Close() error { return nil }

// timedClient answers with a head after 100 ms, a first token 200 ms later and the rest after 700 ms more.
func timedClient(timeout time.Duration, seen func(*http.Request, string)) *client {
	return &client{base: "http://fake", timeout: timeout, http: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		seen(r, string(body))
		if err := wait(r.Context(), 100*time.Millisecond); err != nil {
			return nil, err
		}
		stream := sseStream(true, "one", " two")
		cut := strings.Index(stream, ` two`)
		cut = strings.LastIndex(stream[:cut], "data:")
		return &http.Response{
			StatusCode: http.StatusOK,
			Header:     http.Header{"X-Inferrail-Replica": {"r0"}, "X-Inferrail-Cached-Tokens": {"16"}, "X-Inferrail-Prompt-Tokens": {"40"}},
			Body: &slowBody{r.Context(), []string{stream[:cut], stream[cut:] + usageEvent(40, 16, 2) + "data: [DONE]\n\n"},
				[]time.Duration{200 * time.Millisecond, 700 * time.Millisecond}},
		}, nil
	})}}
}

// fixed is a turn whose body is the number of answers before it.
func fixed(think time.Duration) turn {
	return turn{Path: "/v1/chat/completions", Think: think, Body: func(answers []string) ([]byte, error) {
		return []byte(strings.Join(answers, "|")), nil
	}}
}

func TestDriveMeasuresFromTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		c := timedClient(time.Minute, func(r *http.Request, body string) {
			bodies = append(bodies, body)
			if got := r.Header.Get("X-Session-Id"); got != "a" {
				t.Errorf("session header %q", got)
			}
		})
		w := &workload{Requests: 2, Sessions: []session{{ID: "a", Start: 5 * time.Second, Turns: []turn{fixed(0), fixed(2 * time.Second)}}}}
		p := &progress{label: "x", total: 2}
		samples, skipped := drive(t.Context(), c, w, p)
		if len(samples) != 2 || skipped != 0 {
			t.Fatalf("%d samples, %d skipped", len(samples), skipped)
		}
		if !slices.Equal(bodies, []string{"", "one two"}) {
			t.Errorf("the bodies were made from the answers %q", bodies)
		}
		for i, scheduled := range []time.Duration{5 * time.Second, 8 * time.Second} {
			s := samples[i]
			if s.Error != "" || s.Turn != i || s.Scheduled != scheduled || s.Sent != scheduled ||
				s.FirstToken != scheduled+300*time.Millisecond || s.End != scheduled+time.Second {
				t.Errorf("turn %d: %+v", i, s)
			}
			if s.Replica != "r0" || *s.Predicted != 16 || *s.Counted != 40 || s.CachedTokens != 16 || s.PromptTokens != 40 || s.OutputTokens != 2 {
				t.Errorf("turn %d: %+v", i, s)
			}
		}
		if got, want := p.line(9*time.Second), "x:   9 s, 2 of 2 answered, 0 in flight, 0 errors"; got != want {
			t.Errorf("progress %q, want %q", got, want)
		}
	})
}

func TestDriveIsOpenLoopAcrossSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := timedClient(time.Minute, func(*http.Request, string) {})
		w := &workload{}
		for i := range 5 {
			w.Sessions = append(w.Sessions, session{ID: "a", Start: time.Duration(i) * 100 * time.Millisecond, Turns: []turn{fixed(0)}})
		}
		start := time.Now()
		samples, _ := drive(t.Context(), c, w, nil)
		for _, s := range samples {
			if s.Sent != s.Scheduled {
				t.Errorf("scheduled for %s, sent at %s", s.Scheduled, s.Sent)
			}
		}
		if took := time.Since(start); took != 1400*time.Millisecond {
			t.Errorf("five requests a tenth of a second apart took %s, want 1.4s", took)
		}
	})
}

func TestDriveEndsAtTheRequestsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := timedClient(400*time.Millisecond, func(*http.Request, string) {})
		w := &workload{Sessions: []session{{ID: "a", Turns: []turn{fixed(0), fixed(0), fixed(0)}}}}
		samples, skipped := drive(t.Context(), c, w, nil)
		if len(samples) != 1 || skipped != 2 || !strings.Contains(samples[0].Error, "no complete answer in 400ms") {
			t.Fatalf("%d samples, %d skipped: %+v", len(samples), skipped, samples)
		}
		if samples[0].End != 400*time.Millisecond || samples[0].FirstToken != 300*time.Millisecond {
			t.Errorf("%+v", samples[0])
		}
	})
}

func TestDriveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		c := timedClient(time.Minute, func(*http.Request, string) {})
		w := &workload{Sessions: []session{
			{ID: "a", Turns: []turn{fixed(0)}},
			{ID: "b", Start: time.Hour, Turns: []turn{fixed(0), fixed(0)}},
		}}
		start := time.Now()
		samples, skipped := drive(ctx, c, w, nil)
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("took %s", took)
		}
		if len(samples) != 1 || samples[0].Error == "" || skipped != 2 {
			t.Errorf("%d skipped, samples %+v", skipped, samples)
		}
	})
}

func TestSendReportsFaults(t *testing.T) {
	t.Parallel()
	content := `data: {"choices":[{"text":"x"}]}` + "\n\n"
	finish := `data: {"choices":[{"text":"","finish_reason":"length"}]}` + "\n\n"
	usage, done := usageEvent(1, 0, 1), "data: [DONE]\n\n"
	for _, tc := range []struct {
		name   string
		status int
		body   string
		want   string // part of the error; empty for none
	}{
		{"a whole answer", 200, content + finish + usage + done, ""},
		{"a status other than 200", 404, `{"error":{"message":"no such model"}}`, "status 404: {\"error\":{\"message\":\"no such model\"}}"},
		{"a stream cut off", 200, content, "ended without [DONE]"},
		{"an event cut off", 200, content + "data: {", "unexpected EOF"},
		{"a broken chunk", 200, "data: {\n\n", "parsing chunk"},
		{"an error event", 200, content + `data: {"error":{"message":"boom"}}` + "\n\n", "boom"},
		{"no finish reason", 200, content + usage + done, "no finish reason"},
		{"no usage", 200, content + finish + done, "no usage"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := &client{base: "http://fake", timeout: time.Minute, http: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: tc.status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(tc.body))}, nil
			})}}
			var s sample
			start := time.Now()
			c.send(t.Context(), "/v1/completions", "s", nil, func() time.Duration { return time.Since(start) }, &s)
			if (s.Error == "") != (tc.want == "") || !strings.Contains(s.Error, tc.want) {
				t.Errorf("error %q, want %q in it", s.Error, tc.want)
			}
			if s.Status != tc.status || s.Predicted != nil {
				t.Errorf("%+v", s)
			}
		})
	}
	c := &client{base: "http://fake", timeout: time.Minute, http: &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
		return nil, errors.New("connection refused")
	})}}
	var s sample
	c.send(t.Context(), "/v1/completions", "s", nil, func() time.Duration { return 0 }, &s)
	if s.Status != 0 || !strings.Contains(s.Error, "connection refused") {
		t.Errorf("%+v", s)
	}
}
