// Package fleet keeps what the router knows about each engine replica: its own counts of what it sent there, the prefill
// queued there by its estimate, and what the engine last reported about itself.
//
// A [Replica] hands out one [Lease] per attempt of a request. The lease is told of the response head, the first byte and
// the end, in whatever order and however often they come; the replica's counters follow and are exact at any moment, so
// that routing never depends on a scrape. [ParseMetrics] and [ParseModels] read an engine's metrics page and model list, and
// [Replica.ApplyReport] says what a fresh page changes: capacity learned, engine restarted, scraping recovered.
//
// The package does no I/O, reads no clock and starts no goroutine: points in time are parameters, durations since an
// origin that does not change, so that the same code runs in virtual time. Fetching pages, health, ejection and the choice
// among replicas are done elsewhere.
//
// Concurrency: everything here is safe for concurrent use. Each replica has one lock, never held while another is taken.
//
// Cost: a lease is one allocation of 48 bytes; each of its steps takes amortised constant time, as does
// [Replica.Load]. Nothing grows with traffic but the leases in flight.
package fleet
