//go:build !unix || solaris

package caddymodule

import "net"

// handOver does nothing where Caddy's configurations share one socket.
func handOver(net.Listener) {}
