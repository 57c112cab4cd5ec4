package engine

import (
	"slices"

	"github.com/inferrail/inferrail/index"
)

// sequence is a request inside the engine.
type sequence struct {
	req   Request
	added int64 // order of Add; breaks ties of arrival
	turn  int64 // place in the queue of first come, first served
	place int   // in the queue that holds it
	state state

	output []uint32     // generated tokens
	hashes []index.Hash // of the full blocks of the known tokens

	blocks   []int32 // in token order
	stored   int     // leading blocks that are in the index: hits and own
	computed int     // tokens whose KV exists once the planned step is over; the planned ones not included
	planned  int     // tokens that the planned step computes; 0: not in the step
	// cachedAt and prefillTo bound the prefill since the last admission: tokens [cachedAt, prefillTo).
	// Beyond it each token is a decode step.
	cachedAt, prefillTo int

	times    Times
	cached   int // see Output
	created  int
	preempts int
}

type state uint8

const (
	pending state = iota // arrived after the start of the last step, or not yet
	waiting
	running
	aborted // running, withdrawn while a step is planned
)

// known is the number of prompt and generated tokens.
func (s *sequence) known() int { return len(s.req.Prompt) + len(s.output) }

// tokens appends the known tokens [from, to) to dst.
func (s *sequence) tokens(dst []uint32, from, to int) []uint32 {
	n := len(s.req.Prompt)
	if from < n {
		dst = append(dst, s.req.Prompt[from:min(to, n)]...)
		from = n
	}
	if from < to {
		dst = append(dst, s.output[from-n:to-n]...)
	}
	return dst
}

// extendHashes hashes the blocks that the known tokens have filled since the last call; buf is scratch space
// and is returned for reuse.
func (s *sequence) extendHashes(blockSize int, buf []uint32) []uint32 {
	full := s.known() / blockSize
	if full == len(s.hashes) {
		return buf
	}
	s.hashes = slices.Grow(s.hashes, full-len(s.hashes))
	parent := s.req.Root
	if n := len(s.hashes); n > 0 {
		parent = s.hashes[n-1]
	}
	for i := len(s.hashes); i < full; i++ {
		buf = s.tokens(buf[:0], i*blockSize, (i+1)*blockSize)
		parent = index.Next(parent, buf)
		s.hashes = append(s.hashes, parent)
	}
	return buf
}
