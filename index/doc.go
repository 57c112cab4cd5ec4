// Package index predicts how much of a prompt each replica of a fleet already holds in its KV cache.
//
// A prompt is known by its token ids, cut into the blocks that the engine caches, and by the chained hash of each
// full block ([Root], [Next], [Prompt]), so that a block's hash names its whole prefix. Engines' own block hashes
// are never computed or compared here.
//
// Every prompt that is sent to a replica is recorded there ([Replica.Record]). The replica's shadow plays the
// prompt through a mirror of vLLM's block pool (vLLM 0.32.0, v1/core/block_pool.py and
// v1/core/single_type_kv_cache_manager.py), as far as a router can know it: which free block is taken, which hash
// that evicts, what a hit touches and in which order a finished request's blocks become free again. A shared map
// from block hash to replicas answers for all candidates of a prompt at once ([Index.CachedTokens]).
//
// The index is approximate: it does not hear from the engine. It does not see requests that reached the engine by
// another way, preemptions, or the order in which a busy engine admits and ends requests. Unless
// [Placement.FinishWith] gives the generated tokens they are known only by their number; what they were is learned when
// a later prompt continues them. A prompt that forges a
// collision of XXH3 (not a cryptographic hash) spoils its own prediction and nothing else: predictions steer, they
// never decide what an engine may reuse.
//
// # Concurrency
//
// Everything is safe for concurrent use. The locks, in the only order in which one goroutine may hold two of them:
//
//	Replica.mu → page.mu
//
// Index.mu is never held together with another one. CachedTokens takes one page lock for reading for each 64
// replicas, and afterwards, without it, the lock of each replica on which generated tokens may continue the prompt.
//
// # Cost
//
// A lookup costs one hash probe for each block and 64 replicas, recording a prompt about five for each block. Memory
// is bounded by the replicas' capacities, by [BytesPerBlock] for each block that is in use, and returns when blocks
// go; on top of it a prompt that is being served takes [BytesPerLiveBlock] for each of its blocks.
package index
