package main

import (
	"math/rand/v2"
	"time"
)

// A workload is the load of one run: the same sessions for every policy.
type workload struct {
	Name     string
	About    string // one line for the report
	Sessions []session
	Requests int // turns of all sessions
	Dropped  int // rows of the source that the engines could not hold
	Engine   engineSettings
}

// A session is a series of requests of which each follows on the one before. A single request is a session of one turn.
type session struct {
	ID    string
	Start time.Duration // schedule of the first turn, after the start of the run
	Turns []turn
}

// A turn is one request of a session.
type turn struct {
	// Think is the time from the end of the previous answer to this turn's schedule; unused for the first turn.
	Think time.Duration
	// Body makes the request's body from the answers to all earlier turns of the session.
	Body func(answers []string) ([]byte, error)
	// Path of the endpoint, from /v1.
	Path string
}

// countTurns counts the requests of all sessions.
func countTurns(ss []session) int {
	n := 0
	for i := range ss {
		n += len(ss[i].Turns)
	}
	return n
}

// poissonStarts gives n points in time whose gaps are exponentially distributed with mean span/n: a Poisson process
// that fills about span. The first one is 0, and a seed always gives the same points.
func poissonStarts(n int, span time.Duration, seed uint64) []time.Duration {
	rng := rand.New(rand.NewPCG(seed, 0))
	starts := make([]time.Duration, n)
	at := 0.0
	for i := range starts {
		starts[i] = time.Duration(at)
		at += rng.ExpFloat64() * float64(span) / float64(n)
	}
	return starts
}
