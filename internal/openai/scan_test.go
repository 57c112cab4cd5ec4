package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestScan(t *testing.T) {
	for _, tc := range []struct {
		name, body string
		want       Fields
		err        string
	}{
		{"all fields", `{"model":"m","stream":true,"max_tokens":5,"cache_salt":"s","user":"u"}`,
			Fields{Model: "m", ModelSpan: Span{9, 12}, Stream: true, MaxTokens: 5, CacheSalt: "s", User: "u"}, ""},
		{"max_completion_tokens wins", `{"max_completion_tokens":7,"max_tokens":5}`, Fields{MaxTokens: 7}, ""},
		{"last duplicate counts", `{"model":"a","model" : "b"}`, Fields{Model: "b", ModelSpan: Span{23, 26}}, ""},
		{"escaped key and value", `{"mod\u0065l":"a\/b"}`, Fields{Model: "a/b", ModelSpan: Span{14, 20}}, ""},
		{"nested model is not ours", `{"x":{"model":"a"},"y":[{"model":"b"}]}`, Fields{}, ""},
		{"null model is missing", `{"model":null}`, Fields{}, ""},
		{"number as model", `{"model":3}`, Fields{ModelSpan: Span{9, 10}, ModelInvalid: true}, ""},
		{"byte order mark", "\xef\xbb\xbf{\"stream\":1}", Fields{Stream: true}, ""},
		{"python literals", `{"temperature":NaN,"a":[Infinity,-Infinity]}`, Fields{}, ""},
		{"empty object", ` {} `, Fields{}, ""},
		{"array", `[1]`, Fields{}, ErrNotObject.Error()},
		{"empty", ``, Fields{}, "unexpected end at byte 0"},
		{"trailing data", `{} x`, Fields{}, "unexpected data after the JSON value at byte 3"},
		{"trailing comma", `{"a":1,}`, Fields{}, "expected a member name in double quotes at byte 7"},
		{"unterminated", `{"a":"x`, Fields{}, "unterminated string at byte 7"},
		{"control character", "{\"a\":\"x\ny\"}", Fields{}, "control character in a string at byte 7"},
		{"bad UTF-8", "{\"a\":\"\xff\"}", Fields{}, "invalid UTF-8 at byte 6"},
		{"mismatched brackets", `{"a":[1}`, Fields{}, "expected a comma or a closing bracket at byte 7"},
		{"leading zero", `{"a":01}`, Fields{}, "expected a comma or a closing brace at byte 6"},
		{"bad escape", `{"a":"\x"}`, Fields{}, "invalid escape at byte 6"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Scan([]byte(tc.body))
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("Scan(%s) error = %v, want %s", tc.body, err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Errorf("Scan(%s) = %+v, %v; want %+v", tc.body, got, err, tc.want)
			}
		})
	}
}

func TestScanDeepNesting(t *testing.T) {
	deep := func(n int) []byte {
		return []byte(`{"a":` + strings.Repeat("[", n) + "1" + strings.Repeat("]", n) + "}")
	}
	if _, err := Scan(deep(MaxDepth)); err != nil {
		t.Errorf("depth %d: %v", MaxDepth, err)
	}
	if _, err := Scan(deep(MaxDepth + 1)); err == nil {
		t.Errorf("depth %d was accepted", MaxDepth+1)
	}
	if _, err := Scan(bytes.Repeat([]byte("["), 8<<20)); err == nil {
		t.Error("eight million open brackets were accepted")
	}
}

// TestScanAgreesWithEncodingJSON compares the verdict with the standard library's on arbitrary damage to valid bodies.
func TestScanAgreesWithEncodingJSON(t *testing.T) {
	seeds := []string{
		`{"model":"m","messages":[{"role":"user","content":"a\"b\\c\u00e9"}],"x":[1,-2.5e+3,true,false,null,{}],"y":[]}`,
		`{"a":{"b":{"c":[[],[[1]]]}},"d":"é"}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		body := []byte(rapid.SampledFrom(seeds).Draw(t, "seed"))
		for range rapid.IntRange(0, 4).Draw(t, "edits") {
			i := rapid.IntRange(0, len(body)-1).Draw(t, "at")
			body[i] = rapid.SampledFrom([]byte(`{}[]",:0 1e\.-ntu`)).Draw(t, "byte")
		}
		checkAgainstStdlib(t, body)
	})
}

type fataler interface{ Fatalf(string, ...any) }

func checkAgainstStdlib(t fataler, body []byte) {
	_, err := Scan(body)
	want := json.Valid(body) && utf8.Valid(body)
	got := err == nil || errors.Is(err, ErrNotObject)
	if got != want {
		t.Fatalf("Scan(%q) = %v, json.Valid says %t", body, err, want)
	}
}

func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	f.Add([]byte(`[[[[{"a":[1,2,{"b":null}]}]]]]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		if bytes.Contains(body, []byte("NaN")) || bytes.Contains(body, []byte("Infinity")) || bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
			_, _ = Scan(body)
			return
		}
		checkAgainstStdlib(t, body)
	})
}

// TestReplaceModelChangesNothingElse cuts the replaced value out of both bodies and compares the rest.
func TestReplaceModelChangesNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String().Draw(t, "name")
		quoted, _ := json.Marshal(name)
		before := rapid.SampledFrom([]string{`{`, `{ "x" : 1.50 , `, `{"model":"other","n":1e2,`}).Draw(t, "before")
		after := rapid.SampledFrom([]string{`}`, ` , "x":[1, 2]} `, `,"x":"\u0041"}`}).Draw(t, "after")
		body := before + `"model":` + string(quoted) + after
		f, err := Scan([]byte(body))
		if err != nil {
			t.Fatalf("Scan(%s): %v", body, err)
		}
		got := ReplaceModel([]byte(body), f, "new/name")
		if want := before + `"model":"new/name"` + after; string(got) != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func BenchmarkScan(b *testing.B) {
	for _, size := range []int{2 << 10, 32 << 10, 256 << 10} {
		body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`)
		b.Run(strconv.Itoa(size>>10)+"KiB", func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Scan(body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestScanManyEscapes would not end in a reasonable time if each escape cost a look at the whole rest.
func TestScanManyEscapes(t *testing.T) {
	for _, escape := range []string{`\n`, `\u0000`, `\"`, `\\`} {
		body := []byte(`{"model":"m","prompt":"` + strings.Repeat(escape, 4<<20/len(escape)) + `"}`)
		if f, err := Scan(body); err != nil || f.Model != "m" {
			t.Errorf("4 MiB of %s: %+v, %v", escape, f, err)
		}
	}
}
