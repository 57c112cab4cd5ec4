package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// fakeChildEnv makes the test binary play the router's process: "serve" answers like a router and its engines do,
// "exit" ends at once with a message.
const fakeChildEnv = "INFERRAIL_BENCH_FAKE_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(fakeChildEnv) {
	case "serve":
		os.Exit(serveFake())
	case "exit":
		fmt.Fprintln(os.Stderr, "no policy of that name")
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// serveFake listens on every site of the Caddyfile named by the arguments "run --config FILE …" until it is interrupted.
func serveFake() int {
	text, err := os.ReadFile(os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var sites []string
	for _, m := range regexp.MustCompile(`(?m)^http://(\S+) \{$`).FindAllStringSubmatch(string(text), -1) {
		sites = append(sites, m[1])
	}
	policy := regexp.MustCompile(`policy (\S+)`).FindStringSubmatch(string(text))[1]
	f := &fakeFleet{policy: policy, engines: sites[1:]}
	for _, site := range sites {
		go func() { fmt.Fprintln(os.Stderr, http.ListenAndServe(site, f)) }()
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
	return 0
}

// fakeFleet answers every request in round robin. It predicts 16 cached tokens for each prompt and counts 16, except
// that the policy "wrong" counts 32.
type fakeFleet struct {
	policy  string
	engines []string
	served  atomic.Int64
}

func (f *fakeFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/health":
	case "/metrics":
		fmt.Fprintf(w, "# TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{engine=\"0\"} %d\n", 4*f.served.Load())
		fmt.Fprintf(w, "# TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{engine=\"0\"} %d\n", f.served.Load())
	default:
		f.generate(w, r)
	}
}

func (f *fakeFleet) generate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Messages  []message `json:"messages"`
		Prompt    []uint32  `json:"prompt"`
		MaxTokens int       `json:"max_tokens"`
		Stream    bool      `json:"stream"`
		IgnoreEOS bool      `json:"ignore_eos"`
	}
	err := json.NewDecoder(r.Body).Decode(&req)
	if err != nil || !req.Stream || !req.IgnoreEOS || (req.Messages == nil) == (req.Prompt == nil) {
		http.Error(w, `{"error":{"message":"bad request"}}`, http.StatusBadRequest)
		return
	}
	n := f.served.Add(1)
	if f.policy == "failing" && n%2 == 0 {
		http.Error(w, `{"error":{"message":"no replica"}}`, http.StatusServiceUnavailable)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Inferrail-Replica", f.engines[int(n)%len(f.engines)])
	h.Set("X-Inferrail-Policy", f.policy)
	h.Set("X-Inferrail-Cached-Tokens", "16")
	h.Set("X-Inferrail-Prompt-Tokens", "40")
	cached := 16
	if f.policy == "wrong" {
		cached = 32
	}
	fmt.Fprint(w, sseStream(req.Prompt == nil, "some ", "words"), usageEvent(40, cached, req.MaxTokens), "data: [DONE]\n\n")
}

// sseStream is what comes before the usage: pieces as chunks of a chat or of a completion.
func sseStream(chat bool, pieces ...string) string {
	var b strings.Builder
	if chat {
		b.WriteString(`data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n")
	}
	for i, p := range pieces {
		finish := "null"
		if i == len(pieces)-1 {
			finish = `"length"`
		}
		text := strconv.Quote(p)
		if chat {
			fmt.Fprintf(&b, `data: {"choices":[{"index":0,"delta":{"content":%s},"finish_reason":%s}]}`+"\n\n", text, finish)
		} else {
			fmt.Fprintf(&b, `data: {"choices":[{"index":0,"text":%s,"finish_reason":%s}]}`+"\n\n", text, finish)
		}
	}
	return b.String()
}

func usageEvent(prompt, cached, output int) string {
	return fmt.Sprintf(`data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":%d}}}`+"\n\n",
		prompt, output, cached)
}
