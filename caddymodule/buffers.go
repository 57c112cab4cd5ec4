package caddymodule

import (
	"errors"
	"io"
	"sync/atomic"
)

// errNoRoom ends the reading of a body that would take the bodies held above their limit.
var errNoRoom = errors.New("no room for the body")

// meteredReader counts what it reads towards the bytes of all bodies that the router holds.
type meteredReader struct {
	io.Reader
	used  *atomic.Int64
	limit int64
	held  int64
}

// Read fails once all bodies together are larger than the limit.
func (m *meteredReader) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.held += int64(n)
	if m.used.Add(int64(n)) > m.limit {
		return n, errNoRoom
	}
	return n, err
}

// release gives back what was counted.
func (m *meteredReader) release() {
	m.used.Add(-m.held)
	m.held = 0
}
