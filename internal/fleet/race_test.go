package fleet

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestLimitsAreNeverOvershotUnderRaces(t *testing.T) {
	const limit, callers, rounds = 7, 16, 300
	r := NewReplica("a")
	var holding, taken atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range rounds {
				l, ok := r.TryAcquire(0, 10, ms, Limits{MaxConcurrency: limit})
				if !ok {
					continue
				}
				taken.Add(1)
				if n := holding.Add(1); n > limit {
					t.Errorf("%d requests hold a lease, want at most %d", n, limit)
				}
				holding.Add(-1)
				l.Release(0)
			}
		})
	}
	wg.Wait()
	if taken.Load() == 0 {
		t.Error("no caller got a lease")
	}
	wantLoad(t, r, 0, Load{})
}

// Several goroutines drive the same leases, as a handler and a transport do at the end of a request.
func TestCountersReturnToZeroUnderRaces(t *testing.T) {
	r := NewReplica("a")
	for round := range 50 {
		var leases [20]*Lease
		var wg sync.WaitGroup
		for i := range leases {
			leases[i] = r.Acquire(time.Duration(round)*ms, i*100, time.Duration(i)*ms)
		}
		for g := range 4 {
			rnd := rand.New(rand.NewPCG(uint64(round), uint64(g)))
			wg.Go(func() {
				for _, i := range rnd.Perm(len(leases)) {
					now := time.Duration(round)*ms + time.Duration(rnd.IntN(5000))*time.Microsecond
					switch rnd.IntN(4) {
					case 0:
						leases[i].ResponseHead(now)
					case 1:
						leases[i].FirstByte(now)
					}
					if l := r.Load(now); l.InFlight < 0 || l.Waiting < 0 || l.AwaitingFirstByte < 0 ||
						l.PromptTokens < 0 || l.QueuedPromptTokens < 0 || l.QueuedPrefill < 0 {
						t.Errorf("negative load %+v", l)
					}
					leases[i].Release(now)
				}
			})
		}
		wg.Wait()
		wantLoad(t, r, 0, Load{})
	}
}

func TestReportsUnderRaces(t *testing.T) {
	r := NewReplica("a")
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				now := time.Duration(i) * ms
				switch g {
				case 0, 1:
					r.ApplyReport(now, Report{Running: i, Waiting: i, UsableBlocks: 100})
				case 2:
					r.ApplyFailure()
				default:
					if rep, age, ok := r.Report(now); ok && (age < 0 || rep.Running != rep.Waiting) {
						t.Errorf("report %+v of age %v, want a whole one", rep, age)
					}
				}
			}
		})
	}
	wg.Wait()
}
