package tokenize

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Errors of [Pool.Do].
var (
	// ErrBusy says that the queue was full.
	ErrBusy = errors.New("tokenizer pool is busy")
	// ErrSlow says that no worker was free within the longest wait.
	ErrSlow = errors.New("tokenizer pool is slow")
	// ErrClosed says that the pool is closed.
	ErrClosed = errors.New("tokenizer pool is closed")
)

// PoolConfig bounds a [Pool].
type PoolConfig struct {
	// Workers is how many functions run at once; at least 1.
	Workers int
	// Queue is how many more may wait for a worker; 0 for none.
	Queue int
	// MaxWait is the longest wait for a worker. A function that has started
	// always runs to its end. 0 means not to wait: then nothing queues.
	MaxWait time.Duration
}

// PoolStats are counters of a [Pool] since its start.
type PoolStats struct {
	Done, Busy, Slow uint64
}

// Pool bounds how many requests are tokenized at once, so that they cannot take
// all processors from the requests that are only passed on. It has no
// goroutines of its own: a caller that gets a place runs its function itself.
// It is safe for concurrent use.
type Pool struct {
	places  chan struct{} // a token for every running function
	closed  chan struct{}
	queue   int
	maxWait time.Duration

	mu       sync.Mutex
	waiting  int
	stats    PoolStats
	isClosed bool
	running  sync.WaitGroup
}

// NewPool returns a pool with the given bounds.
func NewPool(c PoolConfig) *Pool {
	if c.MaxWait <= 0 {
		c.Queue = 0
	}
	return &Pool{
		places:  make(chan struct{}, max(c.Workers, 1)),
		closed:  make(chan struct{}),
		queue:   max(c.Queue, 0),
		maxWait: c.MaxWait,
	}
}

// Do runs f when a worker's place is free and returns nil once it has ended.
// Else it returns [ErrBusy], [ErrSlow], [ErrClosed] or the context's error, and
// f never runs. f must not call Do of the same pool.
func (p *Pool) Do(ctx context.Context, f func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wait, err := p.enter()
	if err != nil {
		return err
	}
	defer p.running.Done()
	if wait {
		if err := p.wait(ctx); err != nil {
			return err
		}
	}
	defer func() {
		<-p.places
		p.count(func(s *PoolStats) { s.Done++ })
	}()
	f()
	return nil
}

// enter takes a free place, or one in the queue.
func (p *Pool) enter() (wait bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.isClosed {
		return false, ErrClosed
	}
	if p.waiting == 0 { // else whoever waits is first
		select {
		case p.places <- struct{}{}:
			p.running.Add(1)
			return false, nil
		default:
		}
	}
	if p.waiting >= p.queue {
		p.stats.Busy++
		return false, ErrBusy
	}
	p.waiting++
	p.running.Add(1)
	return true, nil
}

func (p *Pool) wait(ctx context.Context) error {
	defer func() {
		p.mu.Lock()
		p.waiting--
		p.mu.Unlock()
	}()
	timer := time.NewTimer(p.maxWait)
	defer timer.Stop()
	select {
	case p.places <- struct{}{}:
		return nil
	case <-timer.C:
		p.count(func(s *PoolStats) { s.Slow++ })
		return ErrSlow
	case <-ctx.Done():
		return ctx.Err()
	case <-p.closed:
		return ErrClosed
	}
}

func (p *Pool) count(change func(*PoolStats)) {
	p.mu.Lock()
	change(&p.stats)
	p.mu.Unlock()
}

// Stats returns the counters.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Close turns away who waits and who comes, and returns when nothing runs any
// more.
func (p *Pool) Close() {
	p.mu.Lock()
	if !p.isClosed {
		p.isClosed = true
		close(p.closed)
	}
	p.mu.Unlock()
	p.running.Wait()
}
