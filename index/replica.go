package index

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	blockBytes  = int(unsafe.Sizeof(block{}))
	changeBytes = int(unsafe.Sizeof(change{}))
)

// BytesPerBlock bounds the index's memory for each block that a replica has in use, with all tables at their
// emptiest after growth: the block itself, its entry in the replica's table and one in the shared map.
const BytesPerBlock = 64 + 2*slotBytes*8/3

// BytesPerLiveBlock bounds the memory that a placement takes, while it is live, for each block of its prompt, besides
// the tokens of the partial last one.
const BytesPerLiveBlock = 2 * (64 + 4)

// Replica is one engine's place in an [Index], made by [Index.AddReplica]. All methods are safe for concurrent use;
// they do nothing after the replica was removed.
type Replica struct {
	index     *Index
	name      string
	blockSize int
	page      *page
	slot      int
	removed   atomic.Bool // set under mu, once, before the slot is given away

	mu         sync.Mutex
	shadow     *shadow // guarded by mu
	generation uint64  // guarded by mu; counts the emptied shadows
	resets     uint64  // guarded by mu
}

// ReplicaStats is the state of a [Replica]'s shadow at one moment.
type ReplicaStats struct {
	// Blocks is the number of blocks with something in them: held by live placements, or full and reusable.
	Blocks int
	// Hashes is the number of different known block hashes.
	Hashes int
	// Capacity is the number of usable blocks that the engine is assumed to have.
	Capacity int
	// Held is the number of blocks that live placements hold.
	Held int
	// Live is the number of placements that are neither finished nor taken back.
	Live int
	// Bytes estimates the memory of the shadow, without the shared map.
	Bytes int
	// Resets counts the calls of Reset.
	Resets uint64
}

// Name returns the name that the replica was added with.
func (r *Replica) Name() string { return r.name }

// BlockSize returns the number of tokens in a block of this replica.
func (r *Replica) BlockSize() int { return r.blockSize }

// Record notes that p was sent to the replica. Exactly one of the placement's Finish and TakeBack is to be called
// when it is over; until then its blocks cannot be evicted. Recording nil, an empty prompt or one of another block
// size, or on a removed replica, notes nothing; the placement is never nil. p is not kept. O(blocks of p).
func (r *Replica) Record(p *Prompt) *Placement {
	pl := &Placement{}
	if !p.usable(r.blockSize) {
		return pl
	}
	need := (len(p.Tokens) + r.blockSize - 1) / r.blockSize
	pl.holding.blocks = make([]int32, 0, need)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed.Load() {
		return pl
	}
	pl.replica, pl.generation = r, r.generation
	r.shadow.record(p, &pl.holding)
	r.shadow.publishRest()
	return pl
}

// SetCapacity sets the number of usable blocks, as learned from the engine (for vLLM one less than num_gpu_blocks).
// When there are more blocks than that, those that the engine would reuse first are forgotten. A number below 1 is
// ignored.
func (r *Replica) SetCapacity(blocks int) {
	if blocks < 1 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed.Load() {
		return
	}
	if blocks = r.index.capacity(blocks); blocks != r.shadow.capacity {
		r.shadow.setCapacity(blocks)
		r.shadow.publishRest()
	}
}

// Reset empties the replica's shadow: the engine restarted or its prefix cache was reset. Placements from before do
// nothing any more.
func (r *Replica) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed.Load() {
		return
	}
	r.resets++
	r.emptyLocked()
}

// Stats returns the state of the replica's shadow. O(1).
func (r *Replica) Stats() ReplicaStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.shadow
	return ReplicaStats{
		Blocks:   s.existing - s.blanks,
		Hashes:   s.hashes,
		Capacity: s.capacity,
		Held:     s.existing - s.queued,
		Live:     s.live,
		Bytes:    s.bytes(),
		Resets:   r.resets,
	}
}

// remove empties the replica for good and tells whether this call did.
func (r *Replica) remove() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.removed.Swap(true) {
		return false
	}
	r.emptyLocked()
	return true
}

// continued returns how many leading blocks of p a lookup finds, when the first depth of them were just found and a
// continuation is filed under the last.
func (r *Replica) continued(p *Prompt, depth int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.shadow.depth(p, depth, p.limit())
}

func (r *Replica) emptyLocked() {
	r.page.forget(r.slot, r.shadow.table)
	r.shadow = newShadow(r.blockSize, r.shadow.capacity, r.publish)
	r.generation++
}

// publish passes changes of the shadow on to the shared map. It is called with mu held.
func (r *Replica) publish(changes []change) { r.page.apply(r.slot, changes) }
