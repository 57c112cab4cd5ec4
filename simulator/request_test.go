package simulator

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func chatRequest(body string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

func TestRefusalsNameTheParameter(t *testing.T) {
	s := &Simulator{Model: "m", Instance: t.Name(), ZeroLatency: true}
	provision(t, s)
	for _, tc := range []struct{ name, chat, completion, want string }{
		{"logprobs", `"logprobs":true`, `"logprobs":3`, `"param":"logprobs"`},
		{"prompt_logprobs", `"prompt_logprobs":1`, `"prompt_logprobs":1`, `"param":"prompt_logprobs"`},
		{
			"response_format", `"response_format":{"type":"json_object"}`, `"response_format":{"type":"json_object"}`,
			`"param":"response_format"`,
		},
		{
			"structured_outputs", `"structured_outputs":{"regex":"a"}`, `"structured_outputs":{"regex":"a"}`,
			`"param":"structured_outputs"`,
		},
		{
			"null content", `"messages":[{"role":"user","content":null}]`, "",
			`"param":"body.messages.0.ChatCompletionUserMessageParam.content"`,
		},
		{"chat echo", `"echo":true`, "", `"param":"echo"`},
		{"suffix", "", `"suffix":"x"`, `"param":"suffix"`},
		{"too many sequences", `"n":1000`, `"n":1000`, "at most 512 sequences"},
		{"required tool", `"tools":[{}],"tool_choice":"required"`, "", `requires --tool-call-parser`},
		{"boolean", `"stream":"perhaps"`, `"stream":[]`, `"param":"body.stream"`},
		{"number", `"top_p":"x"`, `"top_p":{}`, `"param":"body.top_p"`},
		{"integer", `"n":"x"`, `"n":[1]`, `"param":"body.n"`},
		{"NaN", `"temperature":NaN`, `"temperature":NaN`, "got nan"},
		{"presence", `"presence_penalty":9`, `"presence_penalty":9`, "presence_penalty must be in [-2, 2], got 9.0."},
		{"stop item", `"stop":[1]`, `"stop":[1]`, `"param":"body.stop"`},
	} {
		for _, kind := range []struct {
			field, body string
			serve       func(string) *http.Request
		}{
			{tc.chat, `{"messages":[{"role":"user","content":"x"}],`, chatRequest},
			{tc.completion, `{"prompt":"x",`, func(b string) *http.Request { return completion(t.Context(), b) }},
		} {
			if kind.field == "" {
				continue
			}
			w := httptest.NewRecorder()
			serve(t, s, w, kind.serve(kind.body+kind.field+"}"))
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), tc.want) || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s: %d %s, want 400 with %s", tc.name, w.Code, w.Body, tc.want)
			}
		}
	}
}

// endless is a body that never ends.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

func TestBodyIsBounded(t *testing.T) {
	s := &Simulator{Model: "m", Instance: t.Name()}
	provision(t, s)
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", endless{})
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	serve(t, s, w, r)
	if w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d, want 413", w.Code)
	}
}

// brokenBody is the body of a client that leaves while sending.
type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestBrokenBodyIsAnError(t *testing.T) {
	s := &Simulator{Model: "m", Instance: t.Name()}
	provision(t, s)
	r := httptest.NewRequest(http.MethodPost, "/v1/completions", brokenBody{})
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	serve(t, s, w, r)
	if w.Code != http.StatusBadRequest {
		t.Errorf("status %d, want 400", w.Code)
	}
}

func TestErrorListsAreBounded(t *testing.T) {
	s := &Simulator{Model: "m", Instance: t.Name()}
	provision(t, s)
	w := httptest.NewRecorder()
	serve(t, s, w, completion(t.Context(), `{"prompt":"x","stop_token_ids":[`+strings.Repeat(`{},`, 100_000)+`{}]}`))
	if w.Code != http.StatusBadRequest || w.Body.Len() > 4096 ||
		!strings.Contains(w.Body.String(), "100001 validation errors:") ||
		!strings.Contains(w.Body.String(), "...and 99991 more errors") {
		t.Errorf("%d, %d bytes: %.300s", w.Code, w.Body.Len(), w.Body)
	}
}

// FuzzBody sends bodies through parsing, checking and planning; answers must be JSON and errors must not be of the
// server's kind.
func FuzzBody(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"hi"}],"max_tokens":"5","stop":["a"],"n":2,"temperature":0.5}`,
		`{"prompt":[1,2,3],"max_tokens":0,"echo":true,"truncate_prompt_tokens":2}`,
		`{"prompt":["a","b"],"stop_token_ids":[1],"min_tokens":3}`,
		`{"prompt":[[1],[2,3]],"stream_options":{"include_usage":1},"stream":1}`,
		`{"prompt":"\ud83d","seed":99999999999999999999}`, "{", `"x`, `[1,`, `{"a":"\u12`, "\xef\xbb\xbf{}", "null",
		`{"messages":[],"tools":[{"function":{"name":"f"}}],"tool_choice":{"function":{"name":"f"}}}`,
		`{"prompt":1e999,"temperature":-Infinity,"response_format":{}}`,
	} {
		f.Add([]byte(seed))
	}
	s := &Simulator{Model: "m", Instance: f.Name(), MaxModelLen: 256, NumGPUBlocksOverride: 64, ZeroLatency: true}
	provision(f, s)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(string(body)))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			serve(t, s, w, r)
			stream := strings.HasPrefix(w.Header().Get("Content-Type"), "text/event-stream")
			if w.Code >= 500 || !stream && !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s %q: %d %s", path, body, w.Code, w.Body)
			}
			if stream && !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
				t.Errorf("%s %q: stream ends with %q", path, body, w.Body)
			}
		}
	})
}

// FuzzParseBody checks the parser against encoding/json: what that accepts of UTF-8, it accepts too.
func FuzzParseBody(f *testing.F) {
	for _, seed := range []string{`{"a":[1,-0.5e3,"\u00e4\n",true,null,{}]}`, `[]`, `1`, `{"a":1,"a":2}`, `{"\u0061":""}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		v, obj, err := parseBody(body)
		if json.Valid(body) && err != nil && !errors.Is(err, errBody{}) {
			t.Fatalf("%q is refused: %v", body, err)
		}
		if err != nil {
			return
		}
		if v.kind != kindDict {
			return
		}
		for name, m := range obj.members {
			if m.kind == kindList {
				n := 0
				m.items(func(value) bool { n++; return true })
				if n != m.n {
					t.Errorf("%q: %q has %d items, counted %d", body, name, n, m.n)
				}
			}
		}
	})
}
