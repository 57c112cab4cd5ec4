package engine

import "github.com/inferrail/inferrail/index"

// noBlock ends a list of blocks: id 0 is the null block, which is never handed out.
const noBlock = 0

// block is one KV block. Lists of blocks are linked through ids.
type block struct {
	hash   index.Hash // valid if hashed
	hashed bool
	refs   int32
	// prev and next link a free block; a block in use is in no list.
	prev, next int32
	// copyPrev and copyNext link the blocks of one hash in a ring, in order of insertion.
	copyPrev, copyNext int32
}

// pool hands out blocks and finds cached ones, as vLLM's BlockPool and FreeKVCacheBlockQueue do
// (v1/core/block_pool.py, v1/core/kv_cache_utils.py).
//
// vLLM's free queue is one doubly linked list; the block at its front is taken first. Blocks freed without a
// hash go to its front, those with one to its end, and a hit takes a block out of the middle. So the list
// always consists of blocks freed without a hash, blocks never used, and blocks freed with a hash, in this
// order. The three runs are kept apart here: the first is a stack, the second a counter (blocks come into
// being when first taken), the third a doubly linked list, least recently freed first. A reset drops the
// hashes of the third run but leaves the blocks where they are.
type pool struct {
	blocks    []block // by id; [0] is the null block
	total     int     // blocks that may exist, the null block included
	free      int
	bare      int32                // top of the stack of blocks freed without a hash
	head      int32                // oldest of the blocks freed with a hash
	tail      int32                // newest of them
	cached    int                  // blocks with a hash, copies included
	byHash    map[index.Hash]int32 // hash → first inserted block that still has it
	onEvicted func(index.Hash)     // told about each block that loses its hash by being taken
}

func newPool(total int, onEvicted func(index.Hash)) *pool {
	return &pool{
		blocks:    make([]block, 1),
		total:     total,
		free:      total - 1,
		byHash:    make(map[index.Hash]int32),
		onEvicted: onEvicted,
	}
}

// take removes the block at the front of the free queue, evicts it from the index if need be, and returns it
// with one reference. There must be a free block.
func (p *pool) take() int32 {
	var id int32
	switch {
	case p.bare != noBlock:
		id = p.bare
		p.bare = p.blocks[id].next
		p.blocks[id].next = noBlock
	case len(p.blocks) < p.total:
		id = int32(len(p.blocks))
		p.blocks = append(p.blocks, block{})
	default:
		id = p.head
		p.unlink(id)
	}
	p.free--
	b := &p.blocks[id]
	b.refs = 1
	if b.hashed {
		hash := b.hash
		p.forget(id)
		p.onEvicted(hash)
	}
	return id
}

// lookup returns the block that serves hits of hash, or noBlock.
func (p *pool) lookup(hash index.Hash) int32 { return p.byHash[hash] }

// touch adds a reference to a cached block, taking it out of the free queue if it was there.
func (p *pool) touch(id int32) {
	b := &p.blocks[id]
	if b.refs == 0 {
		p.unlink(id)
		p.free--
	}
	b.refs++
}

// release drops one reference from each of a request's blocks, last block first, so that its tail is evicted
// before its head.
func (p *pool) release(ids []int32) {
	bare := p.bare
	var bareEnd int32 // last block of the run put on the stack: the run keeps its order
	for i := len(ids) - 1; i >= 0; i-- {
		id := ids[i]
		b := &p.blocks[id]
		b.refs--
		if b.refs > 0 {
			continue
		}
		p.free++
		switch {
		case b.hashed:
			p.append(id)
		case bareEnd == noBlock:
			p.bare, bareEnd = id, id
		default:
			p.blocks[bareEnd].next = id
			bareEnd = id
		}
	}
	if bareEnd != noBlock {
		p.blocks[bareEnd].next = bare
	}
}

// store enters a block without a hash into the index. Blocks with the same hash are kept side by side.
func (p *pool) store(id int32, hash index.Hash) {
	b := &p.blocks[id]
	b.hash, b.hashed = hash, true
	p.cached++
	first, ok := p.byHash[hash]
	if !ok {
		p.byHash[hash] = id
		b.copyPrev, b.copyNext = id, id
		return
	}
	last := p.blocks[first].copyPrev
	b.copyPrev, b.copyNext = last, first
	p.blocks[last].copyNext = id
	p.blocks[first].copyPrev = id
}

// forget takes a block out of the index.
func (p *pool) forget(id int32) {
	b := &p.blocks[id]
	if b.copyNext == id {
		delete(p.byHash, b.hash)
	} else {
		p.blocks[b.copyPrev].copyNext = b.copyNext
		p.blocks[b.copyNext].copyPrev = b.copyPrev
		if p.byHash[b.hash] == id {
			p.byHash[b.hash] = b.copyNext
		}
	}
	b.hash, b.hashed = index.Hash{}, false
	b.copyPrev, b.copyNext = noBlock, noBlock
	p.cached--
}

// reset empties the index; it refuses while a block is in use.
func (p *pool) reset() bool {
	if p.used() != 0 {
		return false
	}
	clear(p.byHash)
	p.cached = 0
	for i := range p.blocks {
		b := &p.blocks[i]
		b.hash, b.hashed = index.Hash{}, false
		b.copyPrev, b.copyNext = noBlock, noBlock
	}
	return true
}

// used is the number of blocks with a reference.
func (p *pool) used() int { return p.total - 1 - p.free }

// append puts a block at the end of the free queue.
func (p *pool) append(id int32) {
	b := &p.blocks[id]
	b.prev, b.next = p.tail, noBlock
	if p.tail == noBlock {
		p.head = id
	} else {
		p.blocks[p.tail].next = id
	}
	p.tail = id
}

// unlink takes a block out of the run of blocks that were freed with a hash.
func (p *pool) unlink(id int32) {
	b := &p.blocks[id]
	if b.prev == noBlock {
		p.head = b.next
	} else {
		p.blocks[b.prev].next = b.next
	}
	if b.next == noBlock {
		p.tail = b.prev
	} else {
		p.blocks[b.next].prev = b.prev
	}
	b.prev, b.next = noBlock, noBlock
}
