package index

import (
	"math/bits"
	"slices"
	"sync"
)

// DefaultCapacity is the number of usable blocks that a replica is assumed to have until its engine tells, when
// [Config] does not say otherwise.
const DefaultCapacity = 32768

// DefaultMaxCapacity is the most blocks that the index mirrors for one replica when [Config] does not say otherwise:
// 4,194,304, which take up to 1 GB when all are in use.
const DefaultMaxCapacity = 1 << 22

// Config has the settings of an [Index]. The zero value has all defaults.
type Config struct {
	// DefaultCapacity is the number of usable blocks that a replica is assumed to have when it is added with a
	// capacity below 1. Default: [DefaultCapacity].
	DefaultCapacity int
	// MaxCapacity is the most blocks that are mirrored for one replica, whatever its engine claims to have, and
	// with it the bound on the index's memory: MaxCapacity × [BytesPerBlock] for each replica.
	// Default: [DefaultMaxCapacity].
	MaxCapacity int
}

// Index is the shared map from block hashes to the replicas that hold them. Make one with [New]. All methods are
// safe for concurrent use.
type Index struct {
	config Config

	mu       sync.Mutex
	pages    []*page    // guarded by mu; a page's fields are not
	replicas []*Replica // guarded by mu; by slot, nil where free
}

// Stats is the size of an [Index] at one moment.
type Stats struct {
	// Replicas is the number of replicas that were added and not removed.
	Replicas int
	// Entries is the number of block hashes in the shared map, each counted once for every 64 replicas.
	Entries int
	// Bytes estimates the memory of the shared map and all shadows.
	Bytes int
}

// New returns an empty index.
func New(config Config) *Index {
	if config.DefaultCapacity < 1 {
		config.DefaultCapacity = DefaultCapacity
	}
	if config.MaxCapacity < 1 {
		config.MaxCapacity = DefaultMaxCapacity
	}
	return &Index{config: config}
}

// capacity returns the capacity to use when blocks were asked for.
func (x *Index) capacity(blocks int) int {
	if blocks < 1 {
		blocks = x.config.DefaultCapacity
	}
	return min(blocks, x.config.MaxCapacity)
}

// AddReplica adds an engine with an empty cache of capacity usable blocks (for vLLM one less than its num_gpu_blocks,
// as block 0 is never handed out) of blockSize tokens. A capacity below 1 stands for Config.DefaultCapacity. The name
// is only for the caller; two replicas may have the same one. With a blockSize below 1 nothing is ever recorded.
func (x *Index) AddReplica(name string, blockSize, capacity int) *Replica {
	r := &Replica{index: x, name: name, blockSize: blockSize}
	x.mu.Lock()
	defer x.mu.Unlock()
	slot := slices.Index(x.replicas, nil)
	if slot < 0 {
		slot = len(x.replicas)
		x.replicas = append(x.replicas, nil)
		if slot%pageReplicas == 0 {
			x.pages = append(x.pages, &page{table: newTable(pageSegments)})
		}
	}
	x.replicas[slot] = r
	r.page, r.slot = x.pages[slot/pageReplicas], slot%pageReplicas
	r.shadow = newShadow(blockSize, x.capacity(capacity), r.publish)
	return r
}

// RemoveReplica forgets r and everything that it holds. Later calls of r's methods and of its placements' do nothing,
// and lookups find nothing on it. Removing a replica again, or nil, does nothing.
func (x *Index) RemoveReplica(r *Replica) {
	if r == nil || r.index != x || !r.remove() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.replicas[slices.Index(x.replicas, r)] = nil
}

// Stats returns the index's size. It visits every replica.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	replicas, pages := slices.Clone(x.replicas), slices.Clone(x.pages)
	x.mu.Unlock()
	var st Stats
	for _, g := range pages {
		g.mu.RLock()
		st.Entries += g.table.entries()
		st.Bytes += g.table.bytes()
		g.mu.RUnlock()
	}
	for _, r := range replicas {
		if r != nil {
			st.Replicas++
			st.Bytes += r.Stats().Bytes
		}
	}
	return st
}

// unanswered marks a result that is not there yet.
const unanswered = -1

// CachedTokens tells for each replica how many leading tokens of p it is expected to find in its cache if p is sent
// there: whole blocks, known ones and those that an earlier answer of the engine is expected to be continued in, and
// never the whole prompt, as engines always compute the last token. The answers are put into dst[:0], which is
// returned; when it has room for them nothing is allocated. A replica that is nil, removed or of another block size
// has 0. O(blocks × replicas/64).
func (x *Index) CachedTokens(p *Prompt, replicas []*Replica, dst []int) []int {
	dst = slices.Grow(dst[:0], len(replicas))[:len(replicas)]
	for i := range dst {
		dst[i] = unanswered
	}
	for i, r := range replicas {
		if dst[i] != unanswered {
			continue
		}
		if r == nil || r.removed.Load() || !p.usable(r.blockSize) {
			dst[i] = 0
			continue
		}
		r.page.answer(p, replicas[i:], dst[i:])
	}
	return dst
}

// pageReplicas is the number of replicas that share a page: the bits of a word.
const pageReplicas = 64

// pageSegments keeps the largest move of a page's table near 0.2 ms at a million entries.
const pageSegments = 256

// page is the shared map for up to 64 replicas. In its table, word a of a hash has the bits of the replicas that hold
// the block, and word b those of the replicas that have a continuation filed under it.
type page struct {
	mu    sync.RWMutex
	table *table // guarded by mu
}

// answer fills in dst for those of the replicas that are on this page.
func (g *page) answer(p *Prompt, replicas []*Replica, dst []int) {
	var want uint64
	for _, r := range replicas {
		if r != nil && r.page == g && r.blockSize == p.BlockSize && !r.removed.Load() {
			want |= 1 << r.slot
		}
	}
	var depths [pageReplicas]int
	continued := g.depths(p, want, &depths)
	for i, r := range replicas {
		if r == nil || r.page != g {
			continue
		}
		d := 0
		if want>>r.slot&1 != 0 && r.blockSize == p.BlockSize {
			d = depths[r.slot]
			if continued>>r.slot&1 != 0 {
				d = r.continued(p, d)
			}
		}
		// A slot is given away only after its replica is marked removed: if it is not, the answer was its own.
		if r.removed.Load() {
			d = 0
		}
		dst[i] = d * p.BlockSize
	}
}

// depths tells for each wanted slot how many leading blocks of p it holds, and returns the slots on which a
// continuation is filed under the last of them.
func (g *page) depths(p *Prompt, want uint64, depths *[pageReplicas]int) (continued uint64) {
	limit := p.limit()
	if limit == 0 {
		return 0
	}
	g.mu.RLock()
	defer g.mu.RUnlock()
	_, filed := g.table.get(p.Root)
	alive := want
	for d, h := range p.Hashes[:limit] {
		holders, filedNext := g.table.get(h)
		if gone := alive &^ holders; gone != 0 {
			continued |= gone & filed
			alive &= holders
			for ; gone != 0; gone &= gone - 1 {
				depths[bits.TrailingZeros64(gone)] = d
			}
			if alive == 0 {
				return continued
			}
		}
		filed = filedNext
	}
	for ; alive != 0; alive &= alive - 1 {
		depths[bits.TrailingZeros64(alive)] = limit
	}
	return continued
}

// changesAtOnce bounds how long a lookup waits for a writer: applying one change takes about 0.1 µs.
const changesAtOnce = 128

// apply makes the changes, at most changesAtOnce, of the replica in the given slot.
func (g *page) apply(slot int, changes []change) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range changes {
		g.applyLocked(1<<slot, &changes[i])
	}
}

func (g *page) applyLocked(bit uint64, c *change) {
	entry := g.table.ensure(c.hash)
	word := &entry.a
	if c.what == hasContinuation {
		word = &entry.b
	}
	if c.now {
		*word |= bit
		return
	}
	*word &^= bit
	g.table.prune(entry)
}

// forget removes what the replica in the given slot has in its table from the page.
func (g *page) forget(slot int, t *table) {
	for i := range t.segments {
		for part := range slices.Chunk(t.segments[i].slots, changesAtOnce) {
			g.mu.Lock()
			for j := range part {
				if part[j].a|part[j].b != 0 {
					g.forgetLocked(1<<slot, part[j].hash)
				}
			}
			g.mu.Unlock()
		}
	}
}

func (g *page) forgetLocked(bit uint64, h Hash) {
	if entry := g.table.find(h); entry != nil {
		entry.a &^= bit
		entry.b &^= bit
		g.table.prune(entry)
	}
}
