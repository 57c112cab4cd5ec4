package simulator

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"

	"github.com/inferrail/inferrail/tokenize"
)

var loadQwen3 = sync.OnceValues(func() (*tokenize.Model, error) {
	return tokenize.LoadHuggingFace("../tokenize/testdata/qwen3")
})

// serverA is configured like the server that the cases were captured from.
func serverA(t *testing.T) *Simulator {
	t.Helper()
	m, err := loadQwen3()
	if err != nil {
		t.Fatal(err)
	}
	s := &Simulator{
		Model: "/srv/models/engines/tiny-qwen3", ServedModelName: []string{"tiny-qwen3"}, Instance: t.Name(),
		BlockSize: 32, NumGPUBlocksOverride: 512, MaxModelLen: 4096, EnablePromptTokensDetails: true,
	}
	provision(t, s)
	s.tokenizer = m
	if err := s.useTokenizer(); err != nil {
		t.Fatal(err)
	}
	return s
}

// provision prepares a simulator outside of a server and cleans it up with the test.
func provision(t testing.TB, s *Simulator) {
	t.Helper()
	ctx, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	t.Cleanup(cancel)
	if err := s.Provision(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Cleanup() })
}

// captured is one case: what a client sent and what vLLM answered.
type captured struct {
	Method  string      `json:"method"`
	Path    string      `json:"path"`
	Headers [][2]string `json:"headers"`
	Body    string      `json:"body"`
	BodyB64 string      `json:"body_b64"`

	status int
	header http.Header
	answer []byte
}

func readCase(t *testing.T, dir string) captured {
	t.Helper()
	var c captured
	read := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := json.Unmarshal(read("request.json"), &c); err != nil {
		t.Fatal(err)
	}
	c.answer = read("response.body")
	lines := strings.Split(strings.ReplaceAll(string(read("response.headers")), "\r", ""), "\n")
	c.status, _ = strconv.Atoi(strings.Fields(lines[0])[1])
	c.header = make(http.Header)
	for _, line := range lines[1:] {
		if name, value, ok := strings.Cut(line, ": "); ok {
			c.header.Add(name, value)
		}
	}
	return c
}

func (c *captured) request(ctx context.Context) *http.Request {
	body := []byte(c.Body)
	if c.BodyB64 != "" {
		body, _ = base64.StdEncoding.DecodeString(c.BodyB64)
	}
	r := httptest.NewRequestWithContext(ctx, c.Method, "http://127.0.0.1:8000"+c.Path, bytes.NewReader(body))
	for _, h := range c.Headers {
		r.Header.Add(h[0], h[1])
	}
	return r
}

// masks hide what differs from run to run, and the made-up text.
var masks = []struct {
	re   *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`"id":"(chatcmpl|cmpl)-[^"]*"`), `"id":"$1-X"`},
	{regexp.MustCompile(`"created":\d+`), `"created":0`},
	{regexp.MustCompile(`"system_fingerprint":"[^"]*"`), `"system_fingerprint":"F"`},
	{regexp.MustCompile(`modelperm-[0-9a-f]+`), `modelperm-X`},
	{regexp.MustCompile(`"content":"(?:[^"\\]|\\.)*"`), `"content":"T"`},
	{regexp.MustCompile(`"text":"(?:[^"\\]|\\.)*"`), `"text":"T"`},
	{regexp.MustCompile(`"token_ids":\[[^\]]*\]`), `"token_ids":[]`},
}

func mask(b []byte) string {
	s := strings.ToValidUTF8(string(b), "\uFFFD")
	for _, m := range masks {
		s = m.re.ReplaceAllString(s, m.with)
	}
	return s
}

func TestAnswersLikeTheCapturedServer(t *testing.T) {
	const root = "testdata/cases"
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) || len(entries) == 0 {
		t.Fatalf("no cases in %s: %v", root, err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t.Run(e.Name(), func(t *testing.T) {
			c := readCase(t, filepath.Join(root, e.Name()))
			if _, err := loadQwen3(); err != nil { // outside of the bubble, which would own its locks
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				s := serverA(t)
				w := httptest.NewRecorder()
				if err := s.ServeHTTP(w, c.request(t.Context()), nil); err != nil {
					t.Fatal(err)
				}
				compare(t, &c, w)
			})
		})
	}
}

func compare(t *testing.T, c *captured, w *httptest.ResponseRecorder) {
	t.Helper()
	got, want := mask(w.Body.Bytes()), mask(c.answer)
	if c.Method == http.MethodHead {
		got = ""
	}
	if w.Code != c.status {
		t.Errorf("status %d, want %d", w.Code, c.status)
	}
	if got != want {
		t.Errorf("body\n got %.1500q\nwant %.1500q", got, want)
	}
	for _, name := range []string{"Server", "Content-Type", "Vary", "Allow", "Location", "Access-Control-Allow-Methods"} {
		if g, want := w.Header().Get(name), c.header.Get(name); g != want {
			t.Errorf("header %s: %q, want %q", name, g, want)
		}
	}
	if c.header.Get("Content-Length") != "" {
		if g := w.Header().Get("Content-Length"); g == "" {
			t.Error("Content-Length is missing")
		}
	}
}
