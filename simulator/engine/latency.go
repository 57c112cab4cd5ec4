package engine

import (
	"math"
	"time"
)

// Latency is the time model of a step. All times of this package are points on the engine's own timeline:
// durations since an origin that the caller chooses.
//
// Computing u prompt tokens that attend to c earlier ones costs
//
//	P(u, c) = a·u + b·u·(c + u/2) + d
//
// and a decode batch of n sequences costs DecodeToken + DecodeSeq·(n−1). A step costs the sum of both. The
// chunks of one prompt add up to exactly P(u, c): d is paid once, with the first chunk. The step that
// finishes a prefill gives the first token, so an idle engine's time to first token is exactly P(u, c).
type Latency struct {
	PrefillToken time.Duration // a, per token
	PrefillPair  float64       // b, nanoseconds per pair of tokens (may be below one)
	PrefillFixed time.Duration // d, per prefill
	DecodeToken  time.Duration // one decode step of one sequence
	DecodeSeq    time.Duration // each further sequence of a decode step
}

// Prefill is P(uncached, cached), rounded to the nanosecond; zero if there is nothing to compute.
func (l Latency) Prefill(uncached, cached int) time.Duration {
	if uncached <= 0 {
		return 0
	}
	u, c := float64(uncached), float64(cached)
	pairs := time.Duration(math.Round(l.PrefillPair * u * (c + u/2)))
	return l.PrefillToken*time.Duration(uncached) + pairs + l.PrefillFixed
}

// Decode is the cost of one decode step of n sequences; zero if there are none.
func (l Latency) Decode(n int) time.Duration {
	if n <= 0 {
		return 0
	}
	return l.DecodeToken + l.DecodeSeq*time.Duration(n-1)
}

// chunk is the cost of the prompt tokens [from, to) of a prefill that found cached tokens: the difference of
// two rounded totals, so that rounding does not add up over the chunks.
func (l Latency) chunk(from, to, cached int) time.Duration {
	return l.Prefill(to-cached, cached) - l.Prefill(from-cached, cached)
}
