package caddymodule_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// keepAliveClient is a client with one connection that it keeps, as SDKs do.
func keepAliveClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}}
}

// chat is a request body; streamed chats end only when [DONE] has come.
func chat(i int, stream bool, tokens int) string {
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"system","content":"%s"},{"role":"user","content":"question %d"}],"max_tokens":%d,"stream":%t}`,
		strings.Repeat("you are a helpful assistant ", 20), i, tokens, stream)
}

// complete sends a chat and checks that the answer is whole; began tells whether any byte of its body came.
func complete(client *http.Client, url, body string, stream bool) (began bool, err error) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return false, err
	}
	req.GetBody = nil // the client must not repeat what the server lost
	req.Header.Set("Content-Type", "application/json")
	res, err := client.Do(req)
	if err != nil {
		return false, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	switch {
	case res.StatusCode != http.StatusOK:
		return false, fmt.Errorf("%s: %s", res.Status, b)
	case err != nil:
		return len(b) > 0, err
	case stream && !strings.Contains(string(b), "data: [DONE]"):
		return len(b) > 0, fmt.Errorf("the stream ended without [DONE]")
	case strings.Contains(string(b), `data: {"error"`):
		return true, fmt.Errorf("error in the stream: %s", b)
	}
	return len(b) > 0, nil
}

// TestReloadLosesNothing replaces the whole configuration 30 times, switching the policy, its settings and the replicas,
// while eight clients keep their connections busy, half of them streaming.
func TestReloadLosesNothing(t *testing.T) {
	f := newFleet(t, 3)
	f.simulator = "prefill_token_us 5\nprefill_fixed_ms 1\ndecode_token_ms 2"
	f.start(t)
	all := f.addresses

	traffic := newTraffic(8, f.url("/v1/chat/completions"), func(c, i int, began bool, err error) {
		t.Errorf("client %d, request %d: %v", c, i, err)
	})
	var longest time.Duration
	for n := range 30 {
		traffic.wait(t, 12)
		f.directive = []string{"policy cost_model", "policy least_request", "policy cost_model {\n epsilon 0.5\n}", "policy round_robin"}[n%4]
		f.addresses = all[:2+n%2]
		start := time.Now()
		if err := caddy.Load(adapt(t, f.caddyfile()), true); err != nil {
			t.Fatalf("reload %d: %v", n, err)
		}
		longest = max(longest, time.Since(start))
	}
	traffic.wait(t, 12)
	blocks := metric(t, "inferrail_index_entries")
	if blocks <= 0 {
		t.Errorf("the index has lost its blocks: %v entries", blocks)
	}
	if kept := metric(t, "inferrail_requests_total"); kept < float64(traffic.sent.Load())/2 {
		t.Errorf("counters did not survive: %v requests counted of %d", kept, traffic.sent.Load())
	}
	traffic.end()
	t.Logf("%d requests, %d failed, longest reload %v", traffic.sent.Load(), traffic.failed.Load(), longest.Round(time.Millisecond))

	// What was cached before the last reload is still predicted after it.
	f.addresses = all
	if err := caddy.Load(adapt(t, f.caddyfile()), true); err != nil {
		t.Fatal(err)
	}
	a := mustPost(t, f.url("/v1/chat/completions"), chat(1, false, 4))
	if n := headerInt(t, a.header, "X-Inferrail-Cached-Tokens"); n == 0 {
		t.Error("a prompt that every engine has seen is predicted to be cached nowhere")
	}
	waitFor(t, "counters to return to zero", func() bool {
		return metric(t, "inferrail_replica_in_flight_requests") == 0 && metric(t, "inferrail_replica_queued_prefill_seconds") == 0
	})
}

// traffic is clients that each send one chat after the other over a connection of their own, every second one streaming.
type traffic struct {
	sent, failed atomic.Int64
	stop         chan struct{}
	clients      sync.WaitGroup
}

// newTraffic starts clients; fault is told of each request that did not get its whole answer.
func newTraffic(clients int, url string, fault func(client, request int, began bool, err error)) *traffic {
	tr := &traffic{stop: make(chan struct{})}
	for c := range clients {
		tr.clients.Go(func() {
			client := keepAliveClient()
			defer client.CloseIdleConnections()
			for i := 0; ; i++ {
				select {
				case <-tr.stop:
					return
				default:
				}
				tr.sent.Add(1)
				if began, err := complete(client, url, chat(i%11, c%2 == 0, 5+i%20), c%2 == 0); err != nil {
					tr.failed.Add(1)
					fault(c, i, began, err)
				}
			}
		})
	}
	return tr
}

// wait waits until n more requests have been sent.
func (tr *traffic) wait(t *testing.T, n int64) {
	t.Helper()
	from := tr.sent.Load()
	waitFor(t, "requests", func() bool { return tr.sent.Load() >= from+n })
}

func (tr *traffic) end() {
	close(tr.stop)
	tr.clients.Wait()
}

// TestEngineKilledUnderLoad cuts one engine off like a dying machine. No client may see an error for a request that had
// not begun to answer; streams that had begun end visibly broken, without [DONE].
func TestEngineKilledUnderLoad(t *testing.T) {
	f := newFleet(t, 3)
	f.simulator = "prefill_token_us 20\nprefill_fixed_ms 2\ndecode_token_ms 3"
	victim := newBreakable(t, f.addresses[0])
	f.addresses[0] = victim.addr
	f.start(t)

	var begun atomic.Int64
	traffic := newTraffic(16, f.url("/v1/chat/completions"), func(c, i int, began bool, err error) {
		if stream := c%2 == 0; began && stream {
			begun.Add(1)
			return
		}
		t.Errorf("client %d, request %d: %v", c, i, err)
	})
	for range 3 {
		traffic.wait(t, 100)
		victim.cut()
		traffic.wait(t, 100)
		victim.mend(t)
		waitFor(t, "the replica to come back", func() bool {
			return metric(t, "caddy_reverse_proxy_upstreams_healthy", "upstream", victim.addr) != 0
		})
	}
	traffic.end()
	t.Logf("%d requests over three deaths, %d streams broke after they had begun", traffic.sent.Load(), begun.Load())
	waitFor(t, "counters to return to zero", func() bool {
		return metric(t, "inferrail_replica_in_flight_requests") == 0 && metric(t, "inferrail_replica_queued_prefill_seconds") == 0
	})
}
