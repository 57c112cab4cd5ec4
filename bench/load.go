package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

// drive replays a workload against a router and returns one sample per request sent, in no particular order, and the
// number of turns that were not sent because an earlier turn of their session failed. It returns when all sessions have
// ended or ctx has; progress, if not nil, is told of every request.
func drive(ctx context.Context, c *client, w *workload, p *progress) (samples []sample, skipped int) {
	var (
		mu sync.Mutex // guards samples and skipped
		wg sync.WaitGroup
	)
	start := time.Now()
	since := func() time.Duration { return time.Since(start) }
	for i := range w.Sessions {
		wg.Go(func() {
			got := driveSession(ctx, c, &w.Sessions[i], since, p)
			mu.Lock()
			defer mu.Unlock()
			samples = append(samples, got...)
			skipped += len(w.Sessions[i].Turns) - len(got)
		})
	}
	wg.Wait()
	return samples, skipped
}

// driveSession sends a session's turns, each at its schedule, until one fails or ctx ends.
func driveSession(ctx context.Context, c *client, s *session, since func() time.Duration, p *progress) []sample {
	var (
		samples []sample
		answers []string
		at      = s.Start
	)
	for i := range s.Turns {
		t := &s.Turns[i]
		body, err := t.Body(answers)
		if err == nil {
			err = wait(ctx, at-since())
		}
		if ctx.Err() != nil {
			return samples
		}
		got := sample{Session: s.ID, Turn: i, Scheduled: at}
		p.begin()
		var text string
		if err != nil {
			got.Error = err.Error()
		} else {
			text = c.send(ctx, t.Path, s.ID, body, since, &got)
		}
		p.end(got.Error == "")
		samples = append(samples, got)
		if got.Error != "" {
			return samples
		}
		answers = append(answers, text)
		if i+1 < len(s.Turns) {
			at = got.End + s.Turns[i+1].Think
		}
	}
	return samples
}

// wait sleeps for d, or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// progress counts a run's requests and writes a line every few seconds. A nil progress does nothing.
type progress struct {
	w     io.Writer
	label string
	total int

	mu                     sync.Mutex // guards what follows
	inFlight, done, failed int
}

func (p *progress) begin() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight++
}

func (p *progress) end(ok bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inFlight--
	p.done++
	if !ok {
		p.failed++
	}
}

// line describes the state after the given time.
func (p *progress) line(elapsed time.Duration) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%s: %3.0f s, %d of %d answered, %d in flight, %d errors",
		p.label, elapsed.Seconds(), p.done, p.total, p.inFlight, p.failed)
}

// report writes a line every interval until stop is called, and stop writes the last one.
func (p *progress) report(every time.Duration) (stop func()) {
	start := time.Now()
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fmt.Fprintln(p.w, p.line(time.Since(start)))
			case <-quit:
				return
			}
		}
	})
	return func() {
		close(quit)
		wg.Wait()
		fmt.Fprintln(p.w, p.line(time.Since(start)))
	}
}
