package fleet

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const ms = time.Millisecond

func wantLoad(t *testing.T, r *Replica, now time.Duration, want Load) {
	t.Helper()
	if got := r.Load(now); got != want {
		t.Errorf("load at %v: %+v, want %+v", now, got, want)
	}
}

func TestLeaseCountsEachStepOnce(t *testing.T) {
	r := NewReplica("10.0.0.1:8000")
	l := r.Acquire(0, 1000, 100*ms)
	if l.Replica() != r || r.Name() != "10.0.0.1:8000" {
		t.Errorf("lease of %q, want it of %q", l.Replica().Name(), r.Name())
	}
	for range 2 {
		wantLoad(t, r, 0, Load{InFlight: 1, Waiting: 1, AwaitingFirstByte: 1, PromptTokens: 1000, QueuedPromptTokens: 1000, QueuedPrefill: 100 * ms})
	}
	for range 2 {
		l.ResponseHead(10 * ms)
		wantLoad(t, r, 10*ms, Load{InFlight: 1, AwaitingFirstByte: 1, PromptTokens: 1000, QueuedPromptTokens: 1000, QueuedPrefill: 90 * ms})
	}
	for range 2 {
		l.FirstByte(20 * ms)
		wantLoad(t, r, 20*ms, Load{InFlight: 1, PromptTokens: 1000})
	}
	for range 2 {
		l.Release(30 * ms)
		wantLoad(t, r, 30*ms, Load{})
	}
	l.ResponseHead(40 * ms)
	l.FirstByte(40 * ms)
	wantLoad(t, r, 40*ms, Load{})
}

func TestLeaseStepsImplyTheOnesBefore(t *testing.T) {
	r := NewReplica("a")
	r.Acquire(0, 10, ms).FirstByte(0)
	wantLoad(t, r, 0, Load{InFlight: 1, PromptTokens: 10})
	r.Acquire(0, 10, ms).Release(0)
	wantLoad(t, r, 0, Load{InFlight: 1, PromptTokens: 10})
}

func TestQueueDrainsInRealTime(t *testing.T) {
	r := NewReplica("a")
	first := r.Acquire(0, 100, 100*ms)
	second := r.Acquire(20*ms, 100, 50*ms)
	for _, tc := range []struct{ now, want time.Duration }{
		{20 * ms, 130 * ms}, {70 * ms, 80 * ms}, {149 * ms, ms}, {150 * ms, 0}, {time.Hour, 0},
		{0, 130 * ms}, // a caller that read the clock before it got the lock
	} {
		if got := r.Load(tc.now).QueuedPrefill; got != tc.want {
			t.Errorf("at %v: %v queued, want %v", tc.now, got, tc.want)
		}
	}
	third := r.Acquire(time.Hour, 100, 30*ms)
	if got := r.Load(time.Hour + 10*ms).QueuedPrefill; got != 20*ms {
		t.Errorf("%v queued, want 20ms: an idle hour is not saved up", got)
	}
	for _, l := range []*Lease{first, second, third} {
		l.Release(time.Hour)
	}
	wantLoad(t, r, time.Hour, Load{})
}

func TestQueueIsEmptyOnceAllHaveTheirFirstByte(t *testing.T) {
	r := NewReplica("a")
	slow, fast := r.Acquire(0, 100, 10*time.Second), r.Acquire(0, 100, 10*time.Second)
	slow.FirstByte(ms)
	if got := r.Load(ms).QueuedPrefill; got != 10*time.Second {
		t.Errorf("%v queued, want the second request's 10s", got)
	}
	fast.FirstByte(2 * ms)
	if got := r.Load(2 * ms).QueuedPrefill; got != 0 {
		t.Errorf("%v queued with every first byte in, want none", got)
	}
}

func TestFailedRequestTakesItsShareOfTheQueueBack(t *testing.T) {
	for _, tc := range []struct {
		name string
		fail int
		want time.Duration
	}{
		{"the first, of whose 10s 9s have drained", 0, 8 * time.Second},
		{"one that waits behind it", 1, 4 * time.Second},
		{"the last", 2, 6 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewReplica("a")
			leases := []*Lease{r.Acquire(0, 1, 10*time.Second), r.Acquire(0, 1, 5*time.Second), r.Acquire(0, 1, 3*time.Second)}
			leases[tc.fail].Release(9 * time.Second)
			if got := r.Load(9 * time.Second).QueuedPrefill; got != tc.want {
				t.Errorf("%v queued, want %v", got, tc.want)
			}
		})
	}
}

// A replica that never answers one request goes on serving others; what it is thought to have queued must not pile up.
func TestHungRequestHoldsNoMoreThanItsShare(t *testing.T) {
	r := NewReplica("a")
	hung := r.Acquire(0, 1, time.Second)
	for i := range 1000 {
		now := time.Duration(i) * ms
		l := r.Acquire(now, 1, time.Second)
		l.FirstByte(now)
		l.Release(now)
	}
	if got := r.Load(time.Second).QueuedPrefill; got > time.Second {
		t.Errorf("%v queued, want at most the hung request's 1s", got)
	}
	hung.Release(2 * time.Second)
	wantLoad(t, r, 2*time.Second, Load{})
	if r.queue.head != nil || r.queue.tail != nil {
		t.Error("an idle replica keeps a lease in its queue")
	}
}

func TestSenselessRequestsCannotSpoilTheCounters(t *testing.T) {
	r := NewReplica("a")
	var leases []*Lease
	for range 1000 {
		leases = append(leases, r.Acquire(math.MinInt64, math.MaxInt, math.MaxInt64), r.Acquire(math.MaxInt64, -5, -5))
	}
	if l := r.Load(0); l.PromptTokens <= 0 || l.QueuedPromptTokens <= 0 || l.QueuedPrefill < 0 {
		t.Errorf("load %+v, want sums that did not overflow", l)
	}
	for _, l := range leases {
		l.Release(0)
	}
	wantLoad(t, r, 0, Load{})
}

func TestLimits(t *testing.T) {
	r := NewReplica("a")
	l, ok := r.TryAcquire(0, 1, ms, Limits{MaxConcurrency: 2, MaxPending: 1})
	if !ok {
		t.Fatal("an idle replica refused")
	}
	if got, ok := r.TryAcquire(0, 1, ms, Limits{MaxConcurrency: 2, MaxPending: 1}); ok || got != nil {
		t.Error("took a second request that waits for a response head, want one at most")
	}
	l.ResponseHead(0)
	if _, ok := r.TryAcquire(0, 1, ms, Limits{MaxConcurrency: 2, MaxPending: 1}); !ok {
		t.Error("refused although no request waits for a response head")
	}
	if _, ok := r.TryAcquire(0, 1, ms, Limits{MaxConcurrency: 2}); ok {
		t.Error("took a third request, want two at most")
	}
	before := r.Load(0)
	if (Limits{MaxConcurrency: 2}).Admits(before) || !(Limits{MaxConcurrency: 3}).Admits(before) || !(Limits{}).Admits(before) {
		t.Errorf("Admits disagrees with TryAcquire at %+v", before)
	}
	r.TryAcquire(0, 1, ms, Limits{MaxConcurrency: 2})
	wantLoad(t, r, 0, before)
}

// naive is a replica computed the plain way, from a list of all requests that have not ended.
type naive struct {
	now      time.Duration
	requests []*naiveRequest
}

type naiveRequest struct {
	tokens      int
	share       time.Duration
	head, first bool
	ended       bool
	promised    time.Duration
}

func (m *naive) pass(now time.Duration) {
	left := max(0, now-m.now)
	m.now += left
	for _, q := range m.requests {
		step := min(left, q.share)
		q.share -= step
		left -= step
	}
}

func (m *naive) load() (l Load, promised time.Duration) {
	for _, q := range m.requests {
		if q.ended {
			continue
		}
		l.InFlight++
		l.PromptTokens += q.tokens
		if !q.head {
			l.Waiting++
		}
		if !q.first {
			l.AwaitingFirstByte++
			l.QueuedPromptTokens += q.tokens
			l.QueuedPrefill += q.share
			promised += q.promised
		}
	}
	return l, promised
}

// checkQueue checks that the list is whole, holds only leases with a share left, and sums up to the total.
func checkQueue(t *rapid.T, q *queue) {
	t.Helper()
	var last *Lease
	sum := time.Duration(0)
	for l := q.head; l != nil; last, l = l, l.next {
		if l.prev != last || l.queued <= 0 || l.stage >= streaming {
			t.Fatalf("lease %+v after %p in the queue", l, last)
		}
		sum += l.queued
	}
	if q.tail != last || q.total != sum {
		t.Fatalf("tail %p and total %v, want %p and %v", q.tail, q.total, last, sum)
	}
}

func TestReplicaAgainstANaiveOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, m := NewReplica("a"), new(naive)
		var leases []*Lease
		limits := Limits{MaxConcurrency: rapid.IntRange(0, 6).Draw(t, "concurrency"), MaxPending: rapid.IntRange(0, 4).Draw(t, "pending")}
		now := time.Duration(0)
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			now += time.Duration(rapid.SampledFrom([]int{0, 0, 1, 7, 50, 1000, -3}).Draw(t, "ms")) * ms
			kind := rapid.IntRange(0, 5).Draw(t, "step")
			if kind <= 1 || len(leases) == 0 {
				tokens, prefill := rapid.IntRange(0, 100).Draw(t, "tokens"), time.Duration(rapid.IntRange(0, 60).Draw(t, "prefill"))*ms
				before, _ := m.load()
				l, ok := r.TryAcquire(now, tokens, prefill, limits)
				if ok != limits.Admits(before) {
					t.Fatalf("taken %v at %+v under %+v", ok, before, limits)
				}
				if ok {
					m.pass(now)
					m.requests = append(m.requests, &naiveRequest{tokens: tokens, share: prefill, promised: prefill})
					leases = append(leases, l)
				}
			} else {
				i := rapid.IntRange(0, len(leases)-1).Draw(t, "lease")
				q := m.requests[i]
				m.pass(now)
				switch kind {
				case 2:
					leases[i].ResponseHead(now)
					q.head = true
				case 3:
					leases[i].FirstByte(now)
					q.head, q.first, q.share = true, true, 0
				default:
					leases[i].Release(now)
					q.head, q.first, q.ended, q.share = true, true, true, 0
				}
			}
			m.pass(now)
			want, promised := m.load()
			got := r.Load(m.now)
			if got != want {
				t.Fatalf("load %+v, want %+v", got, want)
			}
			checkQueue(t, &r.queue)
			if got.QueuedPrefill > promised || got.QueuedPrefill < 0 {
				t.Fatalf("%v queued, over the %v of those that await their first byte", got.QueuedPrefill, promised)
			}
		}
		for _, l := range leases {
			l.Release(now)
		}
		if got := r.Load(now); got != (Load{}) {
			t.Fatalf("load %+v after all have ended", got)
		}
	})
}

func BenchmarkLease(b *testing.B) {
	for _, pending := range []int{0, 100, 10_000} {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			r, now := NewReplica("a"), time.Duration(0)
			for range pending {
				r.Acquire(0, 1000, maxPrefill)
			}
			b.ReportAllocs()
			for b.Loop() {
				now += time.Microsecond
				l := r.Acquire(now, 1000, 100*ms)
				l.ResponseHead(now)
				l.FirstByte(now)
				l.Release(now)
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	r := NewReplica("a")
	for range 100 {
		r.Acquire(0, 1000, 100*ms)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = r.Load(ms)
	}
}
