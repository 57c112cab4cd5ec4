package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// patient is a router whose passive health checks never set an engine aside.
func patient(t *testing.T, engines int, lines ...string) *recorded {
	t.Helper()
	f := newRecorded(t, engines)
	f.directive = strings.Join(append([]string{"max_fails 1000000"}, lines...), "\n")
	load(t, f.caddyfile())
	return f
}

// spelled are ways to write a string in JSON.
func spelled(s string) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		b.WriteByte('"')
		for _, c := range []byte(s) {
			switch rapid.IntRange(0, 5).Draw(t, "spelling") {
			case 0:
				fmt.Fprintf(&b, `\u%04x`, c)
			case 1:
				fmt.Fprintf(&b, `\u%04X`, c)
			case 2:
				if c == '/' {
					b.WriteByte('\\')
				}
				fallthrough
			default:
				b.WriteByte(c)
			}
		}
		b.WriteByte('"')
		return b.String()
	})
}

var (
	blank  = rapid.SampledFrom([]string{"", "", "", " ", "\n", "\t\r\n  "})
	number = rapid.SampledFrom([]string{"0", "-0", "1.0", "1e2", "1E+2", "-1.50e-3", "0.1", "123456789012345678901234567890", "1e400", "NaN", "-Infinity"})
	text   = rapid.SampledFrom([]string{
		`""`, `"plain"`, `"\u0041\/\b\f\n\r\t\"\\"`, `"é😀 \ud83d\ude00"`, `"\ud800"`, `"\u0000"`, "\"\u2028\u2029\u007f\"", `"</script>&amp;"`,
		`"model"`, `"\"model\":\"sim\""`,
	})
	scalar = rapid.OneOf(number, text, rapid.SampledFrom([]string{"true", "false", "null"}))
)

// value is any JSON value, oddly written.
var value = rapid.Custom(func(t *rapid.T) string {
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		return "[" + strings.Join(rapid.SliceOfN(scalar, 0, 4).Draw(t, "elements"), ",") + "]"
	case 1: // a model deeper down is not the request's
		return `{"model":` + scalar.Draw(t, "inner") + blank.Draw(t, "blank") + `,"model" : "sim"}`
	default:
		return scalar.Draw(t, "scalar")
	}
})

const canonical, alias = "inferrail/sim-8b", "sim"

// oddBody draws a request's body and what the engine must receive: the same bytes, but for an alias.
func oddBody(t *rapid.T) (body, want string) {
	type member struct{ key, value, sent string }
	var members []member
	for range rapid.IntRange(0, 6).Draw(t, "members") {
		v := value.Draw(t, "value")
		key := rapid.SampledFrom([]string{`"prompt"`, `"messages"`, `"n"`, `"temperature"`, `"\u0070rompt"`, `"Model"`, `""`, `"stream"`, `"max_tokens"`, `"cache_salt"`}).Draw(t, "key")
		if key == `"stream"` {
			v = "false" // the answer would have to be a stream
		}
		members = append(members, member{key, v, v})
	}
	models := rapid.IntRange(0, 3).Draw(t, "models")
	for i := range models {
		m := member{key: rapid.SampledFrom([]string{`"model"`, `"\u006dodel"`}).Draw(t, "key")}
		last := i == models-1
		switch rapid.IntRange(0, 3).Draw(t, "model") {
		case 0:
			m.value = spelled(canonical).Draw(t, "name")
			m.sent = m.value
		case 1:
			m.value, m.sent = "null", "null"
		case 2:
			if !last {
				m.value = value.Draw(t, "overwritten")
				m.sent = m.value
				break
			}
			fallthrough
		default:
			m.value = spelled(alias).Draw(t, "alias")
			m.sent = m.value
			if last {
				m.sent = `"` + canonical + `"`
			}
		}
		at := rapid.IntRange(0, len(members)).Draw(t, "at")
		if last { // it must come behind the other models
			at = len(members)
		}
		members = append(members[:at], append([]member{m}, members[at:]...)...)
	}
	// What comes behind the last model.
	if rapid.Bool().Draw(t, "more") {
		v := value.Draw(t, "value")
		members = append(members, member{`"user"`, v, v})
	}
	var b, w strings.Builder
	both := func(s string) { b.WriteString(s); w.WriteString(s) }
	both(rapid.SampledFrom([]string{"", "", "\xef\xbb\xbf"}).Draw(t, "byte order mark") + blank.Draw(t, "blank") + "{" + blank.Draw(t, "blank"))
	for i, m := range members {
		if i > 0 {
			both("," + blank.Draw(t, "blank"))
		}
		both(m.key + blank.Draw(t, "blank") + ":" + blank.Draw(t, "blank"))
		b.WriteString(m.value)
		w.WriteString(m.sent)
		both(blank.Draw(t, "blank"))
	}
	both("}" + blank.Draw(t, "blank"))
	return b.String(), w.String()
}

// TestBodiesReachEnginesUnchanged sends oddly written bodies past up to two engines that refuse: each attempt receives the
// client's bytes, but for an alias that becomes the model's name, and the client's headers.
func TestBodiesReachEnginesUnchanged(t *testing.T) {
	f := patient(t, 3)
	refuse := says(http.StatusServiceUnavailable, `{"error":"busy"}`)
	serve := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Request-Id", "the-engine's-own")
		writeAnswer(w)
	}
	rapid.Check(t, func(t *rapid.T) {
		body, want := oddBody(t)
		failures := rapid.IntRange(0, 2).Draw(t, "failures")
		f.behave(answers(append([]func(http.ResponseWriter, *http.Request){refuse, refuse}[:failures:failures], serve)...))
		path := rapid.SampledFrom([]string{"/v1/completions", "/v1/chat/completions", "/v1/completions?a=b&c=%20"}).Draw(t, "path")
		var from io.Reader = strings.NewReader(body)
		if rapid.Bool().Draw(t, "chunked") {
			from = io.MultiReader(from) // hides the length
		}
		req, err := http.NewRequest(http.MethodPost, f.url(path), from)
		if err != nil {
			t.Fatal(err)
		}
		id := rapid.SampledFrom([]string{"", "req-1.2_3:4/5+6=7@8", strings.Repeat("a", 128), strings.Repeat("a", 129), "with space", "ünder", `quo"te`}).Draw(t, "id")
		if id != "" {
			req.Header.Set("X-Request-Id", id)
		}
		auth := rapid.StringMatching(`Bearer [!-~]{1,40}`).Draw(t, "authorization")
		req.Header.Set("Authorization", auth)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK || string(got) != wholeAnswer {
			t.Fatalf("%q: answered %s, %v: %s", body, res.Status, err, got)
		}
		seen := f.take()
		if len(seen) != failures+1 {
			t.Fatalf("%d attempts, want %d", len(seen), failures+1)
		}
		ids := res.Header.Values("X-Request-Id")
		if wellFormed := id != "" && len(id) <= 128 && !strings.ContainsAny(id, " ü\""); len(ids) != 1 || wellFormed != (ids[0] == id) || ids[0] == "" {
			t.Errorf("the client's id %q, the answer's %q", id, ids)
		}
		engines := make(map[string]bool)
		for i, s := range seen {
			engines[s.engine] = true
			if string(s.body) != want {
				t.Errorf("attempt %d of\n%q received\n%q, want\n%q", i+1, body, s.body, want)
			}
			if s.length != int64(len(want)) || len(s.encoding) > 0 || s.path != path {
				t.Errorf("attempt %d: path %s, length %d, encoding %q; want %s, %d", i+1, s.path, s.length, s.encoding, path, len(want))
			}
			if s.header.Get("Authorization") != auth || s.header.Get("X-Request-Id") != ids[0] || s.header.Get("Content-Type") != "application/json" {
				t.Errorf("attempt %d: headers %v", i+1, s.header)
			}
		}
		if len(engines) != len(seen) {
			t.Errorf("%d attempts at %d engines", len(seen), len(engines))
		}
	})
}
