package caddymodule_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// TestPredictionsAreExact sends sequential traffic over three small engines, so that blocks are evicted all the time, and
// compares each prediction with what the engine reports to have served from its cache.
func TestPredictionsAreExact(t *testing.T) {
	for _, policy := range []string{"round_robin", "least_request", "cost_model"} {
		t.Run(policy, func(t *testing.T) {
			f := newFleet(t, 3)
			f.directive = "policy " + policy + "\nseed 7"
			f.simulator = "zero_latency\nnum_gpu_blocks_override 160\nmax_model_len 2048"
			f.start(t)
			sequential(t, f, 300)
		})
	}
}

// sequential sends n requests one after the other: chats of several turns over shared system prompts, single prompts and
// token ids, streamed or not, with and without usage in the stream.
func sequential(t *testing.T, f *fleet, n int) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := func(n int) string {
		var b strings.Builder
		for range n {
			fmt.Fprintf(&b, "w%d ", rng.IntN(1000))
		}
		return b.String()
	}
	systems := []string{words(150), words(220), words(90), words(300)}
	type chat struct{ messages []string }
	message := func(role, content string) string { return fmt.Sprintf(`{"role":%q,"content":%q}`, role, content) }
	chats := make([]*chat, 12)
	for i := range chats {
		chats[i] = &chat{[]string{message("system", systems[i%len(systems)])}}
	}
	hits, wrong := 0, 0
	for i := range n {
		var path, body string
		var turn *chat
		maxTokens := 1 + rng.IntN(60)
		switch rng.IntN(4) {
		case 0:
			path = "/v1/completions"
			body = fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":%d,"ignore_eos":true`, systems[rng.IntN(4)]+words(rng.IntN(40)), maxTokens)
		case 1:
			path = "/v1/completions"
			ids := make([]string, 16*(1+rng.IntN(12))+rng.IntN(2)*rng.IntN(16))
			base := rng.IntN(6) * 1000
			for j := range ids {
				ids[j] = strconv.Itoa(base + j)
			}
			body = fmt.Sprintf(`{"model":"inferrail/sim-8b","prompt":[%s],"max_tokens":%d,"ignore_eos":true`, strings.Join(ids, ","), maxTokens)
		default:
			turn = chats[rng.IntN(len(chats))]
			if len(turn.messages) > 8 {
				turn.messages = turn.messages[:1]
			}
			turn.messages = append(turn.messages, message("user", words(5+rng.IntN(30))))
			path = "/v1/chat/completions"
			body = fmt.Sprintf(`{"model":"sim","messages":[%s],"max_tokens":%d,"ignore_eos":true`, strings.Join(turn.messages, ","), maxTokens)
		}
		switch rng.IntN(3) {
		case 0:
			body += `,"stream":true,"stream_options":{"include_usage":true}`
		case 1:
			// A stream without usage: its output tokens are counted by the router; what was cached, by the engine's metrics.
			before := metricsOfEngines(t, f)
			a := mustPost(t, f.url(path), body+`,"stream":true}`)
			got := metricsOfEngines(t, f) - before
			if predicted := headerInt(t, a.header, "X-Inferrail-Cached-Tokens"); predicted != got {
				t.Errorf("request %d: predicted %d cached tokens, engine counted %d", i, predicted, got)
				wrong++
			}
			if turn != nil {
				turn.messages = append(turn.messages, message("assistant", textOf(t, a)))
			}
			continue
		}
		a := mustPost(t, f.url(path), body+"}")
		u := usageOf(t, a)
		predicted := headerInt(t, a.header, "X-Inferrail-Cached-Tokens")
		if predicted != u.Details.Cached || headerInt(t, a.header, "X-Inferrail-Prompt-Tokens") != u.Prompt {
			t.Errorf("request %d %s: predicted %d of %s, engine reports %d of %d", i, path, predicted,
				a.header.Get("X-Inferrail-Prompt-Tokens"), u.Details.Cached, u.Prompt)
			wrong++
		}
		if u.Details.Cached > 0 {
			hits++
		}
		if turn != nil {
			turn.messages = append(turn.messages, message("assistant", textOf(t, a)))
		}
	}
	if hits < n/6 {
		t.Errorf("only %d of %d requests hit a cache; the test shows nothing", hits, n)
	}
	t.Logf("%d of %d predictions exact, %d hits", n-wrong, n, hits)
}

func headerInt(t testing.TB, h http.Header, name string) int {
	t.Helper()
	n, err := strconv.Atoi(h.Get(name))
	if err != nil {
		t.Fatalf("header %s: %v", name, err)
	}
	return n
}
