package tokenize

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// hostileTexts are texts of about n bytes that make careless tokenizers
// quadratic.
func hostileTexts(n int) map[string]string {
	return map[string]string{
		"one word":              strings.Repeat("a", n),
		"one word of syllables": strings.Repeat("ababbaab", n/8),
		"spaces":                strings.Repeat(" ", n),
		"line breaks":           strings.Repeat("\n ", n/2),
		"digits":                strings.Repeat("7", n),
		"punctuation":           strings.Repeat("<|im_end|", n/9),
		"added tokens":          strings.Repeat("<|im_end|>", n/10),
		"marks":                 "a" + strings.Repeat("\u0308\u0323", n/4),
		"jamo":                  strings.Repeat("\u1100\u1161\u11a8", n/9),
		"apostrophes":           strings.Repeat("'", n),
		"think tags":            strings.Repeat("<think></think>", n/15),
	}
}

// 256 KiB take a fraction of a second where any quadratic step would take
// minutes; the limit leaves room for slow machines and the race detector.
func TestHostileTextsAreLinear(t *testing.T) {
	t.Parallel()
	for name, text := range hostileTexts(1 << 18) {
		content, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		body := []byte(`{"messages":[{"role":"assistant","content":` + string(content) + `}]}`)
		for _, m := range []*Model{qwen3(t), NewSim()} {
			start := time.Now()
			if _, err := m.Chat(body); err != nil {
				t.Errorf("%s, %s: %v", name, m.Name(), err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("%s, %s: took %v", name, m.Name(), took)
			}
		}
	}
}

func TestHostileBodiesAreLinear(t *testing.T) {
	t.Parallel()
	many := func(item string, n int) string { return strings.TrimSuffix(strings.Repeat(item+",", n), ",") }
	var keys strings.Builder
	for i := range 50_000 {
		keys.WriteString(`"`)
		keys.WriteString(strings.Repeat("k", i%10))
		keys.WriteString(string(rune('0'+i%10)) + string(rune(0x4e00+i%20000)) + `":1,`)
	}
	for name, body := range map[string]string{
		"messages": `{"messages":[` + many(`{"role":"user","content":"a"}`, 20_000) + `]}`,
		"parts":    `{"messages":[{"role":"user","content":[` + many(`{"type":"text","text":"a"}`, 20_000) + `]}]}`,
		"keys":     `{"messages":[{"role":"user",` + keys.String() + `"content":"a"}]}`,
		"calls": `{"messages":[{"role":"assistant","tool_calls":[` +
			many(`{"function":{"name":"a","arguments":"{\"a\":[1,2]}"}}`, 5_000) + `]}]}`,
		"tools": `{"messages":[{"role":"user","content":"a"}],"tools":[` +
			many(`{"function":{"name":"a","parameters":{"a":{"b":1.50}}}}`, 5_000) + `]}`,
	} {
		start := time.Now()
		if _, err := qwen3(t).Chat([]byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%s: took %v", name, took)
		}
	}
}

// FuzzChatBody checks that any body gives ids or a typed error, and that both
// models agree on which bodies are read at all.
func FuzzChatBody(f *testing.F) {
	for _, c := range lines[goldenCase](f, "testdata/qwen3/golden.jsonl.gz") {
		if len(c.Request) < 2000 {
			f.Add([]byte(c.Request))
		}
	}
	f.Add([]byte(`{"prompt":[[1,2]],"messages":null}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":["\ud83d\ude00"]}],"x":-0.1E+2}`))
	m, sim := qwen3(f), NewSim()
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, m := range []*Model{m, sim} {
			for _, read := range []func([]byte) (Prompt, error){m.Chat, m.Completion} {
				p, err := read(body)
				var u *UnsupportedError
				var i *InvalidError
				if err == nil && (len(p.Tokens) == 0 || p.Count != 1) || err != nil && !errors.As(err, &u) && !errors.As(err, &i) {
					t.Fatalf("%q gives %v, %v", body, p, err)
				}
				if err == nil && !json.Valid(body) && !strings.Contains(string(body), "N") && !strings.Contains(string(body), "Infinity") {
					t.Fatalf("%q is not JSON, and was read", body)
				}
			}
		}
	})
}

// FuzzEncode checks that ids give back the normalized text.
func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "Hello, world's 'ſ 12\r\n\n x", "<|im_start|>a<|im_e", "e\u0301\u0323각 人 \u00a0\u3000", "\xff\xc0a", strings.Repeat("ab", 60)} {
		f.Add(s)
	}
	m, sim := qwen3(f), NewSim()
	f.Fuzz(func(t *testing.T, s string) {
		ids, err := m.Tokenizer().Append(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		text := m.Tokenizer().Decode(nil, ids)
		if utf8.ValidString(s) && !strings.Contains(s, "<") && string(text) != nfc(s) {
			t.Fatalf("%q gives %d and %q", s, ids, text)
		}
		ids, err = sim.Tokenizer().Append(nil, s)
		if err != nil {
			t.Fatal(err)
		}
		if text := sim.Tokenizer().Decode(nil, ids); utf8.ValidString(s) && string(text) != s || !utf8.Valid(text) {
			t.Fatalf("%q gives %x and %q in the simulator", s, ids, text)
		}
	})
}
