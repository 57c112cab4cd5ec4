package tokenize

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hold occupies one place of the pool until the returned function is called.
func hold(t *testing.T, p *Pool) (release func()) {
	t.Helper()
	started, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if err := p.Do(context.Background(), func() { close(started); <-end }); err != nil {
			t.Errorf("Do: %v", err)
		}
	}()
	<-started
	return func() { close(end); <-done }
}

func TestPoolRefusesWhenTheQueueIsFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(PoolConfig{Workers: 1, Queue: 1, MaxWait: time.Second})
		release := hold(t, p)
		queued := make(chan error)
		go func() { queued <- p.Do(context.Background(), func() {}) }()
		synctest.Wait()
		if err := p.Do(context.Background(), func() { t.Error("ran") }); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v with a full queue, want ErrBusy", err)
		}
		release()
		if err := <-queued; err != nil {
			t.Errorf("got %v for the one in the queue, want it to run", err)
		}
		p.Close()
		if got, want := p.Stats(), (PoolStats{Done: 2, Busy: 1}); got != want {
			t.Errorf("got stats %+v, want %+v", got, want)
		}
	})
}

func TestPoolGivesUpAfterMaxWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(PoolConfig{Workers: 1, Queue: 4, MaxWait: 50 * time.Millisecond})
		release := hold(t, p)
		start := time.Now()
		if err := p.Do(context.Background(), func() { t.Error("ran") }); !errors.Is(err, ErrSlow) {
			t.Errorf("got %v, want ErrSlow", err)
		}
		if waited := time.Since(start); waited != 50*time.Millisecond {
			t.Errorf("waited %v, want 50ms", waited)
		}
		release()
		if err := p.Do(context.Background(), func() {}); err != nil {
			t.Errorf("got %v once a place is free, want none", err)
		}
		p.Close()
	})
}

func TestPoolWithoutWaitRefusesAtOnce(t *testing.T) {
	t.Parallel()
	p := NewPool(PoolConfig{Workers: 1, Queue: 10})
	release := hold(t, p)
	if err := p.Do(context.Background(), func() { t.Error("ran") }); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	release()
	p.Close()
}

func TestPoolHeedsContextAndClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(PoolConfig{Workers: 1, Queue: 4, MaxWait: time.Hour})
		release := hold(t, p)
		ctx, cancel := context.WithCancel(context.Background())
		canceled, turned := make(chan error, 1), make(chan error, 1)
		go func() { canceled <- p.Do(ctx, func() { t.Error("ran") }) }()
		synctest.Wait()
		cancel()
		if err := <-canceled; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want context.Canceled", err)
		}
		go func() { turned <- p.Do(context.Background(), func() { t.Error("ran") }) }()
		synctest.Wait()
		closed := make(chan struct{})
		go func() { p.Close(); close(closed) }()
		if err := <-turned; !errors.Is(err, ErrClosed) {
			t.Errorf("got %v for one that waits, want ErrClosed", err)
		}
		select {
		case <-closed:
			t.Error("Close returned while a function ran")
		default:
		}
		release()
		<-closed
		if err := p.Do(context.Background(), func() { t.Error("ran") }); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v after Close, want ErrClosed", err)
		}
	})
}

func TestPoolKeepsPlacesAfterPanic(t *testing.T) {
	t.Parallel()
	p := NewPool(PoolConfig{Workers: 1})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = p.Do(context.Background(), func() { panic("a bug") })
	}()
	if err := p.Do(context.Background(), func() {}); err != nil {
		t.Errorf("got %v after a panic, want none", err)
	}
	p.Close()
}

func TestPoolNeverRunsMoreThanItsWorkers(t *testing.T) {
	t.Parallel()
	p := NewPool(PoolConfig{Workers: 3, Queue: 100, MaxWait: time.Minute})
	var mu sync.Mutex
	running, most := 0, 0
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			err := p.Do(context.Background(), func() {
				mu.Lock()
				running++
				most = max(most, running)
				mu.Unlock()
				mu.Lock()
				running--
				mu.Unlock()
			})
			if err != nil {
				t.Errorf("Do: %v", err)
			}
		})
	}
	wg.Wait()
	p.Close()
	if most > 3 || p.Stats().Done != 50 {
		t.Errorf("%d ran at once, %d in all; want at most 3, and 50", most, p.Stats().Done)
	}
}
