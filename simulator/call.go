package simulator

import (
	"context"
	"sync"
	"time"

	"github.com/inferrail/inferrail/simulator/engine"
)

// call is one HTTP request with the sequences it asks for. The engine's goroutine fills the sequences' buffers, the
// handler empties them.
type call struct {
	mu        sync.Mutex
	sequences []*sequence
	ready     chan struct{} // holds a signal when something was delivered since the last read
}

// sequence is one prompt with the tokens generated for it.
type sequence struct {
	call    *call
	index   int
	request engine.Request
	plan    outputPlan

	// Guarded by call.mu.
	tokens    []uint32 // delivered and not yet taken
	cached    int
	created   int
	finish    engine.FinishReason
	announced bool // the end was taken

	// Guarded by the driver's mu, for its metrics.
	group     *group
	lastToken time.Duration // when the previous token came, on the engine's timeline
	preempts  int           // preemptions counted
}

// group are the n sequences of one prompt.
type group struct {
	n, left int
	longest int // generated tokens
}

func newCall() *call { return &call{ready: make(chan struct{}, 1)} }

func (c *call) signal() {
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

func (s *sequence) deliver(out *engine.Output) {
	s.call.mu.Lock()
	s.tokens = append(s.tokens, out.Token)
	s.cached, s.created, s.finish = out.Cached, out.Created, out.Finish
	s.call.mu.Unlock()
	s.call.signal()
}

// delta is what was delivered to one sequence since the last read.
type delta struct {
	seq             *sequence
	tokens          []uint32
	finish          engine.FinishReason
	cached, created int
}

// next waits for output and appends it to dst, one delta for each sequence that has some. The error is the context's.
func (c *call) next(ctx context.Context, dst []delta) ([]delta, error) {
	for {
		select {
		case <-c.ready:
		case <-ctx.Done():
			return dst, context.Cause(ctx)
		}
		dst = c.take(dst)
		if len(dst) > 0 {
			return dst, nil
		}
	}
}

func (c *call) take(dst []delta) []delta {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sequences {
		if s.announced || len(s.tokens) == 0 && s.finish == "" {
			continue
		}
		dst = append(dst, delta{s, s.tokens, s.finish, s.cached, s.created})
		s.tokens = nil
		s.announced = s.finish != ""
	}
	return dst
}
