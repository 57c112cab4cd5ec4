package simulator

import (
	"errors"
	"sync"
	"time"

	"github.com/inferrail/inferrail/simulator/engine"
)

// driver runs an engine in real time. The engine's timeline begins with the driver; a step begins when the one before
// it ended on that timeline, however late the timer woke, so that overshoot never adds up.
//
// A goroutine runs while the engine has work and ends when it has none. Delivering a token appends to the sequence's
// buffer and never waits, so a slow client does not hold up the engine; a sequence's buffer is bounded by its
// max_tokens (four bytes a token).
type driver struct {
	origin time.Time
	still  bool // no step takes time
	stats  *stats

	stop chan struct{}
	done sync.WaitGroup

	mu        sync.Mutex
	engine    *engine.Engine
	active    bool // the goroutine runs
	closed    bool
	sequences map[uint64]*sequence
	lastID    uint64
}

func newDriver(cfg engine.Config, st *stats) (*driver, error) {
	e, err := engine.New(cfg)
	if err != nil {
		return nil, err
	}
	return &driver{
		origin: time.Now(), still: cfg.Latency == engine.Latency{}, stats: st, stop: make(chan struct{}), engine: e, sequences: make(map[uint64]*sequence),
	}, nil
}

// now is the time on the engine's timeline. Without latencies the timeline stands still: steps take no time on it, so that
// a request that came later would wait until the engine is idle.
func (d *driver) now() time.Duration {
	if d.still {
		return 0
	}
	return time.Since(d.origin)
}

var errClosed = errors.New("the engine has shut down")

// submit queues the sequences of one call, all or none.
func (d *driver) submit(seqs []*sequence) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	now := d.now()
	for i, s := range seqs {
		d.lastID++
		s.request.ID, s.request.Arrival = d.lastID, now
		if err := d.engine.Add(s.request); err != nil {
			d.abortLocked(seqs[:i])
			return err
		}
		d.sequences[s.request.ID] = s
	}
	if !d.active {
		d.active = true
		d.done.Go(d.run)
	}
	return nil
}

// abort withdraws sequences whose client has left. Finished ones are passed over.
func (d *driver) abort(seqs []*sequence) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.abortLocked(seqs)
}

func (d *driver) abortLocked(seqs []*sequence) {
	for _, s := range seqs {
		if _, live := d.sequences[s.request.ID]; live {
			delete(d.sequences, s.request.ID)
			d.engine.Abort(s.request.ID)
		}
	}
	d.stats.gauges(d.engine.Stats())
}

// resetPrefixCache empties the cache; false while blocks are in use.
func (d *driver) resetPrefixCache() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.engine.ResetPrefixCache()
}

// close ends the goroutine and waits for it. Requests still running get no further token.
func (d *driver) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	close(d.stop)
	d.done.Wait()
}

// run computes steps until there is no work.
func (d *driver) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		end, ok := d.plan()
		if !ok {
			return
		}
		if wait := end - d.now(); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-d.stop:
				return
			}
		}
		d.complete()
	}
}

// plan schedules the next step; false when the goroutine is to end.
func (d *driver) plan() (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	end, ok := d.engine.Schedule(d.now())
	if d.closed || !ok {
		d.active = false
		return 0, false
	}
	return end, true
}

func (d *driver) complete() {
	d.mu.Lock()
	defer d.mu.Unlock()
	res := d.engine.Complete()
	d.stats.step(&res, d.engine.Stats(), d.sequences)
	for i := range res.Outputs {
		out := &res.Outputs[i]
		s := d.sequences[out.ID]
		if s == nil {
			continue // aborted during the step
		}
		s.deliver(out)
		if out.Finish != "" {
			delete(d.sequences, out.ID)
		}
	}
}
