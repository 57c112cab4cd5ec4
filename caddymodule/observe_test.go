package caddymodule

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// pieces is a reader that hands out a text in the given lengths.
type pieces struct {
	rest    []byte
	lengths []int
	err     error
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, p.err
	}
	n := len(p.rest)
	if len(p.lengths) > 0 {
		n, p.lengths = min(n, p.lengths[0]), p.lengths[1:]
	}
	n = copy(b, p.rest[:n])
	p.rest = p.rest[n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// observeAll reads a body to its end and returns what was observed and what was passed on.
func observeAll(body *pieces, peek bool) (observation, string, int) {
	var seen observation
	firsts, calls := 0, 0
	b := observe(body, func() { firsts++ }, func(o observation) { seen = o; calls++ })
	b.text = new(outputText)
	if peek {
		if err := b.peek(); err != nil {
			return observation{err: err}, "", firsts
		}
	}
	passed, _ := io.ReadAll(b)
	_ = b.Close()
	if calls != 1 {
		panic("done was not called exactly once")
	}
	return seen, string(passed), firsts
}

const streamedChat = `data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"content":"a\"content\":\"b \u00e9\ud83d\ude00"},"finish_reason":null}]}

data: {"id":"x","choices":[{"index":0,"delta":{"content":"\n\"completion_tokens\":99"},"finish_reason":"length"}]}

data: {"id":"x","choices":[],"usage":{"prompt_tokens":11,"total_tokens":13,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}

data: [DONE]

`

const wholeChat = `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hi \\ there","refusal":null},` +
	`"logprobs":{"content":[{"token":"hi"}]},"finish_reason":"stop"}],"usage":{"prompt_tokens": 11,"completion_tokens": 3,` +
	`"prompt_tokens_details":null}}`

// TestObservationOfAnyPieces reads the same bodies cut anywhere: what is passed on and what is seen never changes.
func TestObservationOfAnyPieces(t *testing.T) {
	bodies := map[string]observation{
		streamedChat: {any: true, streamed: true, chunks: 2, length: true, tokens: 2, cached: 8, prompt: 11,
			text: "a\"content\":\"b é😀\n\"completion_tokens\":99"},
		wholeChat: {any: true, tokens: 3, cached: -1, prompt: 11, text: `hi \ there`},
		`data: {"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}` + "\n\n": {
			any: true, streamed: true, chunks: 1, cached: -1, text: "x"},
	}
	rapid.Check(t, func(t *rapid.T) {
		for body, want := range bodies {
			lengths := rapid.SliceOf(rapid.IntRange(1, 40)).Draw(t, "lengths")
			got, passed, firsts := observeAll(&pieces{[]byte(body), lengths, io.EOF}, rapid.Bool().Draw(t, "peek"))
			if passed != body {
				t.Fatalf("passed on %q, want %q", passed, body)
			}
			if got != want || firsts != 1 {
				t.Fatalf("pieces %v: saw %+v, want %+v; first byte reported %d times", lengths, got, want, firsts)
			}
		}
	})
}

// TestOutputTextFollowsJSON compares with encoding/json on arbitrary text and escapes.
func TestOutputTextFollowsJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		quoted, _ := json.Marshal(text)
		if err := json.Unmarshal(quoted, &text); err != nil { // as valid UTF-8
			t.Fatal(err)
		}
		body := []byte(`{"choices":[{"text":` + string(quoted) + `,"x":"text"}]}`)
		var o outputText
		for len(body) > 0 {
			n := min(len(body), rapid.IntRange(1, 20).Draw(t, "n"))
			o.write(body[:n])
			body = body[n:]
		}
		if string(o.text) != text {
			t.Fatalf("got %q, want %q", o.text, text)
		}
	})
}

func TestOutputTextIsBounded(t *testing.T) {
	var o outputText
	o.write([]byte(`{"text":"`))
	for range 3 * maxOutputText / 1024 {
		o.write([]byte(strings.Repeat("x", 1024)))
	}
	if !o.over || cap(o.text) > 2*maxOutputText {
		t.Errorf("over = %t with %d bytes held", o.over, cap(o.text))
	}
}

func TestPeekFailsBeforeTheFirstByte(t *testing.T) {
	broken := errors.New("connection reset")
	if o, _, _ := observeAll(&pieces{err: broken}, true); !errors.Is(o.err, broken) {
		t.Errorf("peek at a broken body: %v", o.err)
	}
	if o, passed, firsts := observeAll(&pieces{err: io.EOF}, true); o.err != nil || o.any || passed != "" || firsts != 0 {
		t.Errorf("an empty body: %+v, %q, %d", o, passed, firsts)
	}
	if o, _, _ := observeAll(&pieces{rest: []byte("data: {"), err: broken}, true); !errors.Is(o.err, broken) || !o.any {
		t.Errorf("a body that breaks later: %+v", o)
	}
}

func TestGenerated(t *testing.T) {
	encode := func(s string) []uint32 { return make([]uint32, len(s)) } // a token a byte
	for _, tc := range []struct {
		name      string
		o         observation
		max       int
		count     int
		hasTokens bool
	}{
		{"usage and text agree", observation{tokens: 3, text: "abc"}, 0, 3, true},
		{"the token that ended it has no text", observation{tokens: 4, text: "abc"}, 0, 4, true},
		{"text of other tokens", observation{tokens: 9, text: "abc"}, 0, 9, false},
		{"limit without usage", observation{length: true, text: "abc", chunks: 2}, 3, 3, true},
		{"limit cut by the context", observation{length: true, text: "abc", chunks: 2}, 99, 99, false},
		{"stop without usage", observation{text: "abc", chunks: 2}, 99, 4, true},
		{"chunks alone", observation{chunks: 5}, 99, 5, false},
		{"broken off", observation{err: io.ErrUnexpectedEOF, length: true, text: "ab", chunks: 3}, 99, 3, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			count, tokens := tc.o.generated(tc.max, encode)
			if count != tc.count || (tokens != nil) != tc.hasTokens {
				t.Errorf("got %d, %d tokens; want %d, known %t", count, len(tokens), tc.count, tc.hasTokens)
			}
		})
	}
}

func BenchmarkObserve(b *testing.B) {
	chunk := `data: {"id":"chatcmpl-8fd7440e-5278-45ce-a7fb-5e9d905f4ae1","object":"chat.completion.chunk","created":1796089908,` +
		`"model":"inferrail/sim-8b","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	b.ReportAllocs()
	ob := observe(io.NopCloser(strings.NewReader("")), nil, func(observation) {})
	ob.text = new(outputText)
	p := []byte(chunk)
	for b.Loop() {
		ob.saw(p)
		ob.text.text = ob.text.text[:0]
	}
}

// FuzzOutputText follows arbitrary bytes in arbitrary pieces: it must end, and a whole string must be what encoding/json
// makes of it.
func FuzzOutputText(f *testing.F) {
	f.Add([]byte(`a\x`), 1)
	f.Add([]byte(`\ud83d\u0041\ud83d`), 3)
	f.Add([]byte(`\ud83d\\x"`), 5)
	f.Add([]byte(`\ud83d`), 2)
	f.Fuzz(func(t *testing.T, inner []byte, size int) {
		body := append(append([]byte(`{"text":"`), inner...), `","x":1}`...)
		var o outputText
		for rest := body; len(rest) > 0; {
			n := min(len(rest), max(1, size%16))
			o.write(rest[:n])
			rest = rest[n:]
		}
		var v struct{ Text string }
		quoted := append(append([]byte{'"'}, inner...), '"')
		if !json.Valid(quoted) || !utf8.Valid(inner) || json.Unmarshal(body, &v) != nil {
			return
		}
		if !o.over && string(o.text) != v.Text {
			t.Errorf("%s in pieces of %d: got %q, want %q", body, size, o.text, v.Text)
		}
	})
}
