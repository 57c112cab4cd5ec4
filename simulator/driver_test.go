package simulator

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/inferrail/inferrail/internal/openai"
	"github.com/inferrail/inferrail/simulator/engine"
)

// ids is a JSON list of n token ids that begins with first.
func ids(first, n int) string {
	list := make([]uint32, n)
	for i := range list {
		list[i] = uint32(first + i)
	}
	return string(openai.AppendTokenIDs(nil, list))
}

func completion(ctx context.Context, body string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// timedWriter records when each flushed piece of a response came.
type timedWriter struct {
	http.ResponseWriter
	start  time.Time
	flush  []time.Duration
	pieces []string
	// hold, when set, blocks each write until it gives something.
	hold chan struct{}
}

func newTimedWriter() *timedWriter {
	return &timedWriter{ResponseWriter: httptest.NewRecorder(), start: time.Now()}
}

func (w *timedWriter) Write(b []byte) (int, error) {
	if w.hold != nil {
		<-w.hold
	}
	w.pieces = append(w.pieces, string(b))
	return len(b), nil
}

func (w *timedWriter) FlushError() error {
	w.flush = append(w.flush, time.Since(w.start))
	return nil
}

func serve(t *testing.T, s *Simulator, w http.ResponseWriter, r *http.Request) {
	t.Helper()
	if err := s.ServeHTTP(w, r, nil); err != nil {
		t.Error(err)
	}
}

// snapshot gives the engine's gauges and whether its goroutine runs.
func (d *driver) snapshot() (engine.Stats, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engine.Stats(), d.active
}

func near(got, want time.Duration) bool { return (got - want).Abs() < time.Microsecond }

func TestStreamFollowsTheLatencyModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Simulator{Model: "m", Instance: t.Name()}
		provision(t, s)
		w := newTimedWriter()
		serve(t, s, w, completion(t.Context(), `{"prompt":`+ids(1, 100)+`,"max_tokens":3,"stream":true}`))
		// 100 tokens: 100·100 µs + 3.3 ns·100·50 + 5 ms
		prefill := 15*time.Millisecond + 16500*time.Nanosecond
		decode := 20 * time.Millisecond
		want := []time.Duration{0, prefill, prefill + decode, prefill + 2*decode, prefill + 2*decode}
		if len(w.flush) != len(want) {
			t.Fatalf("%d flushes, want %d: %v", len(w.flush), len(want), w.flush)
		}
		for i := range want {
			if !near(w.flush[i], want[i]) {
				t.Errorf("flush %d at %v, want %v", i, w.flush[i], want[i])
			}
		}
	})
}

func TestLateTimersDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Simulator{Model: "m", Instance: t.Name()}
		provision(t, s)
		d := s.engine.driver
		d.active = true // steps are made by hand below
		c := newCall()
		seq := &sequence{call: c, group: &group{n: 1, left: 1}}
		seq.request = engine.Request{Prompt: []uint32{1}, MaxTokens: 4, Next: func(int) uint32 { return 7 }}
		c.sequences = append(c.sequences, seq)
		if err := d.submit(c.sequences); err != nil {
			t.Fatal(err)
		}
		var last time.Duration
		for i := range 4 {
			end, ok := d.plan()
			if !ok {
				t.Fatalf("no step %d", i)
			}
			if i > 0 && end-last != 20*time.Millisecond {
				t.Errorf("step %d ends %v after the one before, want 20ms", i, end-last)
			}
			last = end
			time.Sleep(end - d.now() + 7*time.Millisecond)
			d.complete()
		}
		if _, ok := d.plan(); ok {
			t.Error("a step is planned though nothing is left")
		}
	})
}

func TestDisconnectFreesBlocksWithinAStep(t *testing.T) {
	for _, stream := range []bool{true, false} {
		t.Run("stream "+strconv.FormatBool(stream), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Simulator{Model: "m", Instance: t.Name()}
				provision(t, s)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan struct{})
				body := `{"prompt":` + ids(1, 100) + `,"max_tokens":1000,"stream":` + strconv.FormatBool(stream) + `}`
				go func() {
					serve(t, s, httptest.NewRecorder(), completion(ctx, body))
					close(done)
				}()
				time.Sleep(100 * time.Millisecond)
				d := s.engine.driver
				if st, _ := d.snapshot(); st.UsedBlocks == 0 {
					t.Fatal("no blocks in use while the request runs")
				}
				cancel()
				<-done
				time.Sleep(20 * time.Millisecond)
				synctest.Wait()
				if st, active := d.snapshot(); st.UsedBlocks != 0 || st.Running != 0 || active {
					t.Errorf("a step after the disconnect: %+v, active %v", st, active)
				}
				if got := s.engine.stats.stopped + s.engine.stats.cutOff; got != 0 {
					t.Errorf("%d requests counted as finished, want 0", got)
				}
			})
		})
	}
}

func TestSlowClientHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Simulator{Model: "m", Instance: t.Name()}
		provision(t, s)
		slow := newTimedWriter()
		slow.hold = make(chan struct{})
		done := make(chan struct{})
		go func() {
			serve(t, s, slow, completion(t.Context(), `{"prompt":`+ids(1, 10)+`,"max_tokens":50,"stream":true}`))
			close(done)
		}()
		fast := newTimedWriter()
		serve(t, s, fast, completion(t.Context(), `{"prompt":`+ids(500, 10)+`,"max_tokens":100}`))
		if took := time.Since(fast.start); took > 2200*time.Millisecond {
			t.Errorf("the fast client waited %v", took)
		}
		if st, _ := s.engine.driver.snapshot(); st.Running != 0 {
			t.Error("the slow client's request has not finished in the engine")
		}
		close(slow.hold)
		<-done
		// The first token, the 49 that were computed meanwhile, and the end.
		if len(slow.pieces) != 3 {
			t.Errorf("%d pieces for the slow client, want 3", len(slow.pieces))
		}
		if n := strings.Count(strings.Join(slow.pieces, ""), "data: "); n != 3 {
			t.Errorf("%d events, want 3", n)
		}
	})
}

func TestCachedTokensAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Simulator{Model: "m", Instance: t.Name(), EnablePromptTokensDetails: true}
		provision(t, s)
		body := `{"prompt":` + ids(1, 100) + `,"max_tokens":1%s}`
		for i, tc := range []struct{ extra, want string }{
			{"", `"cached_tokens":0,`},
			{"", `"cached_tokens":96,`},
			{`,"cache_salt":"a"`, `"cached_tokens":0,`},
			{`,"cache_salt":"a"`, `"cached_tokens":96,`},
		} {
			w := httptest.NewRecorder()
			serve(t, s, w, completion(t.Context(), strings.Replace(body, "%s", tc.extra, 1)))
			if !strings.Contains(w.Body.String(), tc.want) {
				t.Errorf("request %d: %s, want %s", i, w.Body, tc.want)
			}
		}
		reset := httptest.NewRecorder()
		serve(t, s, reset, httptest.NewRequest(http.MethodPost, "/reset_prefix_cache", nil))
		if got := reset.Body.String(); got != `{"success":true}` {
			t.Errorf("reset: %s", got)
		}
		w := httptest.NewRecorder()
		serve(t, s, w, completion(t.Context(), strings.Replace(body, "%s", "", 1)))
		if !strings.Contains(w.Body.String(), `"cached_tokens":0,`) {
			t.Errorf("after the reset: %s", w.Body)
		}
	})
}

func TestClosedDriverTakesNothing(t *testing.T) {
	d, err := newDriver(engine.Config{
		BlockSize: 16, NumGPUBlocks: 8, MaxNumSeqs: 1, MaxNumBatchedTokens: 16, MaxModelLen: 64,
	}, newStats(64, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	d.close()
	if err := d.submit(nil); !errors.Is(err, errClosed) {
		t.Errorf("submit after close: %v", err)
	}
}

// BenchmarkDriverStep is a step of 64 running sequences, their tokens read after each.
func BenchmarkDriverStep(b *testing.B) {
	d, err := newDriver(engine.Config{
		BlockSize: 16, NumGPUBlocks: 1 << 13, MaxNumSeqs: 64, MaxNumBatchedTokens: 2048, MaxModelLen: 1024,
	}, newStats(1024, time.Now()))
	if err != nil {
		b.Fatal(err)
	}
	d.active = true // steps are made by hand
	c := newCall()
	submit := func(i int) {
		s := &sequence{call: c, index: i, group: &group{n: 1, left: 1}}
		s.request = engine.Request{Prompt: []uint32{1}, MaxTokens: 1000, Next: func(i int) uint32 { return uint32(i) }}
		c.sequences[i] = s
		if err := d.submit(c.sequences[i : i+1]); err != nil {
			b.Fatal(err)
		}
	}
	c.sequences = make([]*sequence, 64)
	for i := range c.sequences {
		submit(i)
	}
	var deltas []delta
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := d.plan(); !ok {
			b.Fatal("idle")
		}
		d.complete()
		deltas = c.take(deltas[:0])
		for i := range deltas {
			if deltas[i].finish != "" {
				submit(deltas[i].seq.index)
			}
		}
	}
}
