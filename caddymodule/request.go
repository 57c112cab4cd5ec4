package caddymodule

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/inferrail/inferrail/index"
	"github.com/inferrail/inferrail/internal/fleet"
	"github.com/inferrail/inferrail/internal/openai"
)

// requestCtxKey is where the handler puts the *request for the selection policy and the transport.
const requestCtxKey caddy.CtxKey = "inferrail_request"

// request is what the three modules on a request's way share. It is used by one goroutine at a time, but for the
// attempt, which locks itself.
type request struct {
	id     string
	model  *Model
	fields openai.Fields
	// body is what the engine receives at every attempt; it is never written to.
	body    []byte
	arrival time.Duration

	// prompt is nil when the request is routed without a prediction; promptTokens is then an estimate.
	prompt       *index.Prompt
	promptTokens int

	attempts int
	tried    []string
	current  *attempt
	holding  *Selection // nil until a replica has been selected
}

func requestFrom(ctx context.Context) *request {
	r, _ := ctx.Value(requestCtxKey).(*request)
	return r
}

func (r *request) hasTried(address string) bool { return slices.Contains(r.tried, address) }

// begin makes a the attempt under way. What the one before it left open counts as never computed.
func (r *request) begin(a *attempt) {
	r.end()
	r.attempts++
	if !r.hasTried(a.replica.key.address) {
		r.tried = append(r.tried, a.replica.key.address)
	}
	r.current = a
}

// end closes the attempt under way, if it is still open.
func (r *request) end() {
	if r.current != nil {
		r.current.abandon()
	}
}

// release ends the request's hold on the state of its fleet. The handler calls it last, after end.
func (r *request) release() {
	if r.holding != nil {
		r.holding.letGo()
		r.holding = nil
	}
}

// attempt is one try of a request at one replica, from selection to the end of the response. It gives back what it took
// exactly once, whichever end comes first. Safe for concurrent use.
type attempt struct {
	replica   *replica
	policy    string
	predicted int // cached tokens; -1 without a prediction

	mu        sync.Mutex
	lease     *fleet.Lease
	placement *index.Placement // nil without a prediction
	started   bool             // the first byte has come
	closed    bool
}

func (a *attempt) responseHead() { a.lease.ResponseHead(now()) }

// firstByte is the moment from which the engine is known to have computed the prompt.
func (a *attempt) firstByte() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.started {
		return
	}
	a.started = true
	a.lease.FirstByte(now())
}

// fail ends an attempt that the engine never computed: it refused, failed or answered with an error.
func (a *attempt) fail() { a.close(false, 0, nil) }

// finish ends an attempt whose prompt was computed and that generated count tokens, known or not.
func (a *attempt) finish(count int, tokens []uint32) { a.close(true, count, tokens) }

// abandon ends an attempt whose outcome nobody reported.
func (a *attempt) abandon() {
	a.mu.Lock()
	started := a.started
	a.mu.Unlock()
	a.close(started, 0, nil)
}

func (a *attempt) close(computed bool, count int, tokens []uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	a.closed = true
	if a.placement != nil {
		if computed {
			a.placement.FinishWith(count, tokens)
		} else {
			a.placement.TakeBack()
		}
	}
	a.lease.Release(now())
}
