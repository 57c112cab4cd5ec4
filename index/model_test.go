package index

import (
	"cmp"
	"maps"
	"slices"
)

// model is a shadow written for clearness: no links, no numbers that are used twice, every lookup a scan, and a
// placement is undone by going back to a copy of everything.
type model struct {
	blockSize int
	capacity  int
	blocks    map[int]modelBlock // existing blocks by id
	records   map[Hash]modelContinuation
	evictions []int // one id for each eviction that is not undone
	version   int   // of the whole state; comes back only with the state
	live      int
	low, high int // stamps given out
	ids       *int
}

type modelBlock struct {
	content content
	hash    Hash
	stored  int // order of storing
	stamp   int // order of freeing
	refs    int
	claims  int
}

type modelContinuation struct {
	tail   []uint32
	blocks []int
}

type modelPlacement struct {
	prompt *Prompt
	held   []int
	hits   int
	took   []modelTaken
	before *model // state at Record
	after  int    // version after Record
	from   int    // evictions before Record
	lost   []int  // evictions by Record
}

type modelTaken struct {
	existed bool
	id      int
	was     modelBlock
	record  modelContinuation // that began with it, filed under key
	key     Hash
}

func newModel(blockSize, capacity int) *model {
	return &model{blockSize: blockSize, capacity: capacity, blocks: map[int]modelBlock{}, records: map[Hash]modelContinuation{}, ids: new(int)}
}

func (m *model) clone() *model {
	c := *m
	c.blocks, c.records, c.evictions = maps.Clone(m.blocks), maps.Clone(m.records), slices.Clone(m.evictions)
	return &c
}

func (m *model) id() int { *m.ids++; return *m.ids }

func (m *model) set(id int, change func(*modelBlock)) {
	b := m.blocks[id]
	change(&b)
	m.blocks[id] = b
}

// queue returns the free blocks in the order in which they are taken.
func (m *model) queue() []int {
	var ids []int
	for id, b := range m.blocks {
		if b.refs == 0 {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b int) int { return cmp.Compare(m.blocks[a].stamp, m.blocks[b].stamp) })
	return ids
}

// first returns the first stored block with hash h, or 0.
func (m *model) first(h Hash) int {
	found := 0
	for id, b := range m.blocks {
		if b.content == known && b.hash == h && (found == 0 || b.stored < m.blocks[found].stored) {
			found = id
		}
	}
	return found
}

// continuation returns the resident blocks of the continuation that p goes on with after depth blocks.
func (m *model) continuation(p *Prompt, depth int) []int {
	rec, ok := m.records[p.key(depth)]
	end := depth*m.blockSize + len(rec.tail)
	if !ok || end > len(p.Tokens) || !slices.Equal(p.Tokens[depth*m.blockSize:end], rec.tail) {
		return nil
	}
	for n, id := range rec.blocks {
		if _, ok := m.blocks[id]; !ok {
			return rec.blocks[:n]
		}
	}
	return rec.blocks
}

func (m *model) depth(p *Prompt) int {
	d := 0
	for d < p.limit() {
		if m.first(p.Hashes[d]) != 0 {
			d++
		} else if c := m.continuation(p, d); len(c) > 0 {
			d = min(d+len(c), p.limit())
		} else {
			break
		}
	}
	return d
}

func (m *model) adopt(p *Prompt) int {
	d := 0
	for d < p.limit() {
		if m.first(p.Hashes[d]) != 0 {
			d++
			continue
		}
		c := m.continuation(p, d)
		if len(c) == 0 {
			break
		}
		n := min(len(c), len(p.Hashes)-d)
		rest := m.records[p.key(d)].blocks[n:]
		delete(m.records, p.key(d))
		for i, id := range c[:n] {
			m.store(id, p.Hashes[d+i])
		}
		if _, taken := m.records[p.key(d+n)]; len(c) > n && !taken {
			m.records[p.key(d+n)] = modelContinuation{blocks: rest}
		}
	}
	return d
}

func (m *model) store(id int, h Hash) {
	m.set(id, func(b *modelBlock) { b.content, b.hash, b.stored = known, h, m.id() })
}

// evict removes a block; where it was the first of a continuation, nothing is left of that.
func (m *model) evict(id int) {
	if m.blocks[id].content != blank {
		m.evictions = append(m.evictions, m.id())
	}
	delete(m.blocks, id)
	maps.DeleteFunc(m.records, func(_ Hash, rec modelContinuation) bool { return rec.blocks[0] == id })
}

func (m *model) take() (int, modelTaken) {
	var taken modelTaken
	q := m.queue()
	if len(q) > 0 && (m.blocks[q[0]].content == blank || len(m.blocks) >= m.capacity) {
		taken = modelTaken{existed: true, id: q[0], was: m.blocks[q[0]]}
		for key, rec := range m.records {
			if rec.blocks[0] == q[0] {
				taken.key, taken.record = key, rec
			}
		}
		m.evict(q[0])
	}
	id := m.id()
	m.blocks[id] = modelBlock{refs: 1, claims: 1}
	return id, taken
}

func (m *model) record(p *Prompt) *modelPlacement {
	pl := &modelPlacement{prompt: p, before: m.clone(), from: len(m.evictions)}
	m.version = m.id()
	m.live++
	pl.hits = m.adopt(p)
	for d := range pl.hits {
		id := m.first(p.Hashes[d])
		m.set(id, func(b *modelBlock) { b.refs++; b.claims++ })
		pl.held = append(pl.held, id)
	}
	for d := pl.hits; d*m.blockSize < len(p.Tokens); d++ {
		id, taken := m.take()
		pl.held, pl.took = append(pl.held, id), append(pl.took, taken)
	}
	for d := pl.hits; d < len(p.Hashes); d++ {
		m.store(pl.held[d], p.Hashes[d])
	}
	pl.after, pl.lost = m.version, slices.Clone(m.evictions[pl.from:])
	return pl
}

// finish takes generated as unknown unless there are outputs tokens of it or one less.
func (m *model) finish(pl *modelPlacement, outputs int, generatedTokens []uint32) {
	m.version = m.id()
	m.live--
	most := max(len(pl.held), m.capacity)
	computed := len(pl.prompt.Tokens) + max(outputs, 1) - 1
	for len(pl.held)*m.blockSize < computed && len(pl.held) < most {
		id, _ := m.take()
		pl.held = append(pl.held, id)
	}
	own := len(pl.prompt.Hashes)
	if n := len(generatedTokens); n == outputs || n == outputs-1 {
		all := slices.Concat(pl.prompt.Tokens, generatedTokens)[:computed]
		hashes := AppendHashes(nil, pl.prompt.Root, all, m.blockSize)
		for ; own < min(len(hashes), most); own++ {
			m.store(pl.held[own], hashes[own])
		}
	}
	if full := min(computed/m.blockSize, most); full > own {
		for _, id := range pl.held[own:full] {
			m.set(id, func(b *modelBlock) { b.content = generated })
		}
		m.records[pl.prompt.key(own)] = modelContinuation{pl.prompt.Tokens[own*m.blockSize:], slices.Clone(pl.held[own:full])}
	}
	for _, id := range slices.Backward(pl.held) {
		m.set(id, func(b *modelBlock) {
			b.refs--
			m.stamp(b, b.content != blank)
		})
	}
	m.shrink()
}

func (m *model) stamp(b *modelBlock, last bool) {
	if last {
		m.high++
		b.stamp = m.high
	} else {
		m.low--
		b.stamp = m.low
	}
}

func (m *model) shrink() {
	for q := m.queue(); len(q) > 0 && len(m.blocks) > m.capacity; q = q[1:] {
		m.evict(q[0])
	}
}

func (m *model) takeBack(pl *modelPlacement) {
	if m.version == pl.after {
		*m = *pl.before.clone()
		return
	}
	m.version = m.id()
	m.live--
	intact := slices.Equal(m.evictions[min(pl.from, len(m.evictions)):], pl.lost)
	for n, id := range slices.Backward(pl.held) {
		m.set(id, func(b *modelBlock) { b.refs--; b.claims-- })
		if m.blocks[id].claims > 0 {
			continue
		}
		taken := modelTaken{existed: true}
		if n >= pl.hits {
			taken = pl.took[n-pl.hits]
		}
		delete(m.blocks, id)
		switch {
		case taken.existed && taken.id != 0 && intact:
			m.blocks[taken.id] = taken.was
			if _, newer := m.records[taken.key]; taken.record.blocks != nil && !newer {
				m.records[taken.key] = taken.record
			}
		case taken.existed:
			var b modelBlock
			m.stamp(&b, false)
			m.blocks[m.id()] = b
		}
	}
	if intact {
		m.evictions = m.evictions[:min(pl.from, len(m.evictions))]
	}
	m.shrink()
}

func (m *model) setCapacity(blocks int) {
	if blocks != m.capacity {
		m.version = m.id()
		m.capacity = blocks
		m.shrink()
	}
}
