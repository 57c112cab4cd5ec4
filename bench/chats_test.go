package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestChatWorkload(t *testing.T) {
	t.Parallel()
	plan := defaultChatPlan("m")
	w, err := chatWorkload(plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Sessions) != 60 || w.Requests < 180 || w.Requests > 300 {
		t.Fatalf("%d chats with %d turns", len(w.Sessions), w.Requests)
	}
	again, err := chatWorkload(plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]bool{}
	for i, s := range w.Sessions {
		if ids[s.ID] {
			t.Errorf("two chats have the id %q", s.ID)
		}
		ids[s.ID] = true
		if n := len(s.Turns); n < 3 || n > 5 {
			t.Errorf("chat %s has %d turns", s.ID, n)
		}
		if i > 0 && s.Start < w.Sessions[i-1].Start {
			t.Errorf("chat %s starts before the one before it", s.ID)
		}
		if s.Start > 2*plan.Span {
			t.Errorf("chat %s starts at %s, far beyond the span", s.ID, s.Start)
		}
		for j, turn := range s.Turns {
			if turn.Think < plan.ThinkMin || turn.Think > plan.ThinkMax {
				t.Errorf("chat %s: think time %s", s.ID, turn.Think)
			}
			a := body(t, turn, j)
			if b := body(t, again.Sessions[i].Turns[j], j); !reflect.DeepEqual(a, b) || s.Start != again.Sessions[i].Start {
				t.Errorf("chat %s turn %d differs between two calls", s.ID, j)
			}
			if n := int(a["max_tokens"].(float64)); n < plan.AnswerMin || n > plan.AnswerMax {
				t.Errorf("chat %s: %d answer tokens", s.ID, n)
			}
		}
	}
}

// body is a turn's request with n answers.
func body(t *testing.T, turn turn, n int) map[string]any {
	t.Helper()
	data, err := turn.Body(make([]string, n))
	if err != nil {
		t.Fatal(err)
	}
	var req map[string]any
	if err := json.Unmarshal(data, &req); err != nil {
		t.Fatal(err)
	}
	return req
}

func TestLimitKeepsTheSchedule(t *testing.T) {
	t.Parallel()
	all, err1 := chatWorkload(defaultChatPlan("m"), 0)
	few, err2 := chatWorkload(defaultChatPlan("m"), 3)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	if len(few.Sessions) != 3 || few.Sessions[2].Start != all.Sessions[2].Start {
		t.Errorf("three chats start at %s instead of %s", few.Sessions[2].Start, all.Sessions[2].Start)
	}
}

func TestChatBodyAlternatesRoles(t *testing.T) {
	t.Parallel()
	data, err := chatBody("m", "sys", []string{"u1", "u2"}, []string{"a1"}, 9)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model":"m","max_tokens":9,"temperature":0,"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true},` +
		`"messages":[{"role":"system","content":"sys"},{"role":"user","content":"u1"},{"role":"assistant","content":"a1"},{"role":"user","content":"u2"}]}`
	if string(data) != want {
		t.Errorf("got %s\nwant %s", data, want)
	}
	if _, err := chatBody("m", "sys", []string{"u1", "u2"}, nil, 9); err == nil {
		t.Error("no error for a second turn without the first one's answer")
	}
}

func TestReadChatsRejectsBrokenLines(t *testing.T) {
	t.Parallel()
	systems := map[string]string{"s": "text"}
	for line, want := range map[string]string{
		`{"id":"x","system":"other","turns":["a"]}`: `unknown system prompt "other"`,
		`{"id":"x","system":"s","turns":[]}`:        "no turns",
		`{"id":`:                                    "line 1",
	} {
		if _, err := readChats([]byte(line), systems); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", line, err, want)
		}
	}
}

func TestPoissonStarts(t *testing.T) {
	t.Parallel()
	const n = 20_000
	span := n * time.Second
	starts := poissonStarts(n, span, 3)
	if starts[0] != 0 {
		t.Errorf("the first start is at %s", starts[0])
	}
	short := 0
	for i := 1; i < n; i++ {
		if starts[i] < starts[i-1] {
			t.Fatalf("start %d is before the one before it", i)
		}
		if starts[i]-starts[i-1] < time.Second {
			short++
		}
	}
	// The mean gap is a second, and 1-1/e of exponential gaps are shorter than their mean; both within four standard
	// errors.
	if mean := starts[n-1].Seconds() / (n - 1); mean < 0.97 || mean > 1.03 {
		t.Errorf("the mean gap is %.3f s, want 1", mean)
	}
	if f := float64(short) / (n - 1); f < 0.618 || f > 0.646 {
		t.Errorf("%.3f of the gaps are below their mean, want 0.632", f)
	}
}
