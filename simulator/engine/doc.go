// Package engine models the scheduler, the KV block pool and the timing of vLLM 0.32.0's V1 engine.
//
// It decides what a real engine would decide, step by step: which requests run, how many tokens of each are
// computed, which blocks are taken, hit, cached and evicted, who is preempted, and which KV events follow. It
// computes no text: each request brings its own generated tokens (Request.Next).
//
// The model is a pure state machine. It starts no goroutine, reads no clock, draws no random number and does
// no I/O: time is what the caller passes in, on a virtual timeline. The same requests at the same times give
// the same results, in real time under a server and in virtual time under a simulation. A caller loops over
//
//	end, ok := e.Schedule(now) // plan a step
//	…wait until end…           // Add and Abort may be called meanwhile
//	result := e.Complete()     // its tokens and events
//
// Not modelled: more than one KV cache group, sliding windows, speculative decoding, adapters loaded at run
// time, KV connectors, pipeline and data parallelism, asynchronous scheduling. HTTP, metrics pages and the
// wire format of KV events are the caller's.
//
// The sources followed are vLLM's v1/core/sched/scheduler.py, v1/core/kv_cache_manager.py,
// v1/core/single_type_kv_cache_manager.py, v1/core/block_pool.py and v1/core/sched/request_queue.py; the tests
// replay what a real server did.
//
// Concurrency: an Engine is not safe for concurrent use; call it from one goroutine or under one lock.
//
// Cost: a step takes time in proportion to the sequences scheduled plus the blocks taken or looked up, a
// waiting request O(log n). Memory is bounded by the blocks ever used (at most the pool) and by the tokens of
// the requests held; the caller bounds how many it adds.
package engine
