// Package inferrail plugs a KV-cache-aware router for self-hosted LLM engines, and a mock vLLM to prove it on, into the
// Caddy web server:
//
//	xcaddy build --with github.com/inferrail/inferrail
//
// # A tour
//
// A request comes to caddymodule.Handler, which reads it and, with package tokenize, computes the token ids that the engine
// will compute. Caddy's reverse_proxy asks caddymodule.Selection for a replica; it prices every candidate with package
// policies, from the replicas' counters (internal/fleet) and from what package index believes that each holds of the
// prompt. caddymodule.Transport sends the request and reports how it ended.
//
// Package simulator is a Caddy handler that behaves as vLLM does; what it models is in simulator/engine, a state machine
// without a clock. The command bench measures routing policies on it.
//
// docs/architecture.md tells more.
package inferrail

import (
	_ "github.com/inferrail/inferrail/caddymodule" // the router
	_ "github.com/inferrail/inferrail/simulator"   // the mock engine
)
