//go:build unix && !solaris

package caddymodule

import "net"

// handOver closes a listener of a configuration that has a successor. On these systems each configuration of Caddy has a
// socket of its own (SO_REUSEPORT), so that new connections then go to the successor's.
func handOver(l net.Listener) {
	if tcp := unwrap(l); tcp != nil {
		_ = tcp.Close() // closed is closed
	}
}
