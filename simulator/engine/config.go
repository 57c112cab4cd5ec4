package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Config is what an engine is built from. Fields are named after vLLM's flags and have no defaults.
type Config struct {
	// BlockSize is the number of tokens in a block (--block-size).
	BlockSize int
	// NumGPUBlocks is the number of blocks in the pool (--num-gpu-blocks-override), the null block included:
	// NumGPUBlocks-1 are usable, and these must hold one request of MaxModelLen tokens.
	NumGPUBlocks int
	// MaxNumSeqs is the number of requests that may run at once (--max-num-seqs).
	MaxNumSeqs int
	// MaxNumBatchedTokens is the number of tokens that one step may compute (--max-num-batched-tokens), at
	// least MaxNumSeqs. A longer prompt is computed in chunks.
	MaxNumBatchedTokens int
	// MaxModelLen bounds the prompt and output tokens of one request together (--max-model-len).
	MaxModelLen int
	// EnablePrefixCaching keeps full blocks for later requests (--enable-prefix-caching). Without it nothing
	// is hashed, kept or counted, and no event is emitted.
	EnablePrefixCaching bool
	// PriorityScheduling serves by (Priority, Arrival) (--scheduling-policy priority); else first come, first
	// served.
	PriorityScheduling bool
	// Latency says how long a step takes. The zero value makes every step take no time.
	Latency Latency
	// KVEvents turns on the record of stores, removals and clears in StepResult.Events (--kv-events-config).
	KVEvents bool
}

const (
	// maxBlocks keeps block ids within an int32.
	maxBlocks = 1 << 30
	// maxCost is what one full prefill or one full decode batch may take; it keeps sums of durations far from
	// overflow.
	maxCost = 365 * 24 * time.Hour
)

// validate returns every fault of c, joined; nil if there is none.
func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, f := range []struct {
		flag  string
		value int
	}{
		{"--block-size", c.BlockSize},
		{"--num-gpu-blocks-override", c.NumGPUBlocks},
		{"--max-num-seqs", c.MaxNumSeqs},
		{"--max-num-batched-tokens", c.MaxNumBatchedTokens},
		{"--max-model-len", c.MaxModelLen},
	} {
		if f.value <= 0 {
			bad("%s is %d, must be positive", f.flag, f.value)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if c.NumGPUBlocks > maxBlocks {
		bad("--num-gpu-blocks-override is %d, must be at most %d", c.NumGPUBlocks, maxBlocks)
	}
	if need := blocksFor(c.MaxModelLen, c.BlockSize); need > c.NumGPUBlocks-1 {
		bad("--num-gpu-blocks-override is %d, must be at least %d (the null block and %d blocks) to serve one request of --max-model-len %d",
			c.NumGPUBlocks, need+1, need, c.MaxModelLen)
	}
	if c.MaxNumBatchedTokens < c.MaxNumSeqs {
		bad("--max-num-batched-tokens is %d, must be at least --max-num-seqs %d", c.MaxNumBatchedTokens, c.MaxNumSeqs)
	}
	errs = append(errs, c.Latency.validate(c.MaxModelLen, c.MaxNumSeqs)...)
	return errors.Join(errs...)
}

// blocksFor is the number of blocks that n tokens need; unlike (n+size-1)/size it cannot overflow.
func blocksFor(n, size int) int {
	b := n / size
	if n%size != 0 {
		b++
	}
	return b
}

func (l Latency) validate(maxModelLen, maxNumSeqs int) []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if l.PrefillToken < 0 {
		bad("--prefill-token-us is %v, must not be negative", l.PrefillToken)
	}
	if !(l.PrefillPair >= 0) || math.IsInf(l.PrefillPair, 0) {
		bad("--prefill-pair-ns is %v, must be a finite number not below zero", l.PrefillPair)
	}
	if l.PrefillFixed < 0 {
		bad("--prefill-fixed-ms is %v, must not be negative", l.PrefillFixed)
	}
	if l.DecodeToken < 0 {
		bad("--decode-token-ms is %v, must not be negative", l.DecodeToken)
	}
	if l.DecodeSeq < 0 {
		bad("--decode-seq-us is %v, must not be negative", l.DecodeSeq)
	}
	if len(errs) > 0 {
		return errs
	}
	n := float64(maxModelLen)
	if cost := float64(l.PrefillToken)*n + l.PrefillPair*n*n + float64(l.PrefillFixed); cost > float64(maxCost) {
		bad("--prefill-token-us, --prefill-pair-ns and --prefill-fixed-ms make a prefill of --max-model-len %d take over %v", maxModelLen, maxCost)
	}
	if cost := float64(l.DecodeToken) + float64(l.DecodeSeq)*float64(maxNumSeqs); cost > float64(maxCost) {
		bad("--decode-token-ms and --decode-seq-us make a step of --max-num-seqs %d take over %v", maxNumSeqs, maxCost)
	}
	return errs
}
