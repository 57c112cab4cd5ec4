package caddymodule

import (
	"net/http"
	"sync"
	"time"
)

// drain moves HTTP/1 clients off a configuration that is about to stop. A server that stops closes the idle connections
// under its clients, and a client that sends a request at that instant loses it. So for a short time before, every
// response asks its client to reconnect (Connection: close), which lands on the new configuration. HTTP/2 and HTTP/3 have
// their own farewell.
type drain struct {
	mu       sync.Mutex
	draining bool
	open     int       // HTTP/1 requests whose response head went out, or may have, without the farewell
	lastOpen time.Time // when the last of them ended: its client may send the next request on the same connection
}

const (
	// drainQuiet is how long a client may take from the end of a response to its next request to count as busy.
	drainQuiet = 150 * time.Millisecond
	drainPoll  = 5 * time.Millisecond
)

// enter counts a request and returns what must be called when its response head goes out and when it ends. Both must
// be called from the request's goroutine.
func (d *drain) enter(r *http.Request) (head func(http.Header), leave func()) {
	if r.ProtoMajor != 1 {
		return func(http.Header) {}, func() {}
	}
	d.mu.Lock()
	d.open++
	d.mu.Unlock()
	farewell := false
	head = func(h http.Header) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.draining && !farewell {
			h.Set("Connection", "close")
			farewell = true
			d.open--
		}
	}
	return head, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if !farewell {
			d.open--
			d.lastOpen = time.Now()
		}
	}
}

// run drains for at most limit, and returns as soon as no client is busy.
func (d *drain) run(limit time.Duration) {
	start := time.Now()
	d.mu.Lock()
	d.draining = true
	idle := d.open == 0 && time.Since(d.lastOpen) > drainQuiet
	d.mu.Unlock()
	for !idle && time.Since(start) < limit {
		time.Sleep(drainPoll)
		d.mu.Lock()
		idle = d.open == 0 && time.Since(d.lastOpen) > drainQuiet
		d.mu.Unlock()
	}
}
