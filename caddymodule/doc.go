// Package caddymodule is the router's side of Inferrail inside Caddy: the app that holds the models, the handler that
// reads a request and tokenizes it, the selection policy that asks a routing policy for a replica, the transport that
// watches each attempt, the admin routes, the metrics and the Caddyfile.
//
// The three request-path modules are joined by one *request value in the request's context. Everything that outlives a
// configuration (the index, the replicas' counters, policy state, collectors) is kept in the usage pools of state.go; a
// request holds its own references, so that it can end after the configuration that it began under.
//
// Decisions do not live here: they are made by package policies on counters of package fleet and predictions of package
// index, none of which know Caddy.
package caddymodule
