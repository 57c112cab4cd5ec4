package index

import "fmt"

// failer is what testing.T and rapid.T share.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// checkReplica fails unless r's shadow is consistent and the shared map agrees with it.
func checkReplica(t failer, r *Replica) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.shadow.check(); err != nil {
		t.Fatalf("replica %q: %v", r.name, err)
	}
	if n := len(r.shadow.changes); n != 0 {
		t.Fatalf("replica %q: %d changes were not published", r.name, n)
	}
	if err := r.agrees(); err != nil {
		t.Fatalf("replica %q: %v", r.name, err)
	}
}

// agrees returns an error unless the page has exactly the hashes of r's table under r's bit.
func (r *Replica) agrees() error {
	r.page.mu.RLock()
	defer r.page.mu.RUnlock()
	bit := uint64(1) << r.slot
	for i := range r.page.table.segments {
		for _, e := range r.page.table.segments[i].slots {
			a, b := r.shadow.table.get(e.hash)
			if (e.a&bit != 0) != (a != 0) || (e.b&bit != 0) != (b != 0) {
				return fmt.Errorf("shared map %b %b of %v, shadow %d %d", e.a, e.b, e.hash, a, b)
			}
		}
	}
	for i := range r.shadow.table.segments {
		for _, e := range r.shadow.table.segments[i].slots {
			if a, b := r.page.table.get(e.hash); e.a != 0 && a&bit == 0 || e.b != 0 && b&bit == 0 {
				return fmt.Errorf("shared map lacks %v: %b %b, shadow %d %d", e.hash, a, b, e.a, e.b)
			}
		}
	}
	return nil
}

// check returns an error unless the shadow's own parts agree with each other.
func (s *shadow) check() error {
	if err := s.table.check(); err != nil {
		return err
	}
	if err := s.checkQueue(); err != nil {
		return err
	}
	spares := 0
	for i := s.spare; i != none; i = s.blocks[i].next {
		spares++
	}
	if s.existing+spares != len(s.blocks) {
		return fmt.Errorf("%d blocks exist and %d are spare, of %d", s.existing, spares, len(s.blocks))
	}
	if s.existing > s.capacity && s.queued > 0 {
		return fmt.Errorf("%d blocks of %d and %d of them free", s.existing, s.capacity, s.queued)
	}
	return s.checkContents()
}

// checkQueue checks order and links of the free queue, and that blank blocks are its first ones.
func (s *shadow) checkQueue() error {
	queued, blanks, before := 0, 0, none
	for i := s.head; i != none; i = s.blocks[i].next {
		b := &s.blocks[i]
		queued++
		if b.content == blank {
			blanks++
		}
		switch {
		case queued > len(s.blocks):
			return fmt.Errorf("free queue has a loop")
		case b.prev != before || !b.queued || b.refs != 0:
			return fmt.Errorf("block %d in the free queue: prev %d (want %d), queued %v, refs %d", i, b.prev, before, b.queued, b.refs)
		case before != none && s.blocks[before].stamp >= b.stamp:
			return fmt.Errorf("stamp %d before %d", s.blocks[before].stamp, b.stamp)
		case (b.content == blank) != (b.stamp < 0):
			return fmt.Errorf("block %d with content %d has stamp %d", i, b.content, b.stamp)
		}
		before = i
	}
	if before != s.tail || queued != s.queued || blanks != s.blanks {
		return fmt.Errorf("free queue: tail %d, counts %d, %d; found %d, %d, %d", s.tail, s.queued, s.blanks, before, queued, blanks)
	}
	return nil
}

// checkContents checks that rings of copies and continuations are what the table and the blocks say.
func (s *shadow) checkContents() error {
	copies, hashes, filed := 0, 0, 0
	for i := range s.table.segments {
		for _, e := range s.table.segments[i].slots {
			if e.a != 0 {
				hashes++
				n, err := s.ring(int32(e.a-1), e.hash)
				if err != nil {
					return err
				}
				copies += n
			}
			if e.b != 0 {
				filed++
				if b := &s.blocks[e.b-1]; b.content != generated || !b.filed || b.hash != e.hash || b.left != none {
					return fmt.Errorf("continuation of %v begins with %+v", e.hash, *b)
				}
			}
		}
	}
	if hashes != s.hashes {
		return fmt.Errorf("%d hashes, counted %d", hashes, s.hashes)
	}
	queued := 0
	for i := range s.blocks {
		b := &s.blocks[i]
		switch b.content {
		case known:
			copies--
		case generated:
			if b.filed {
				filed--
			}
			if b.right != none && (s.blocks[b.right].content != generated || s.blocks[b.right].left != int32(i)) {
				return fmt.Errorf("generated block %d is not followed by %d", i, b.right)
			}
		}
		if b.queued {
			queued++
		}
		if b.queued && b.refs != 0 || b.refs < 0 || b.content == known && b.claims == 0 {
			return fmt.Errorf("block %d: %+v", i, *b)
		}
	}
	if copies != 0 || filed != 0 || queued != s.queued {
		return fmt.Errorf("off by %d copies, %d continuations, %d queued blocks", copies, filed, queued-s.queued)
	}
	return nil
}

// ring returns the length of the ring of copies of h that begins with block first.
func (s *shadow) ring(first int32, h Hash) (int, error) {
	for n, i := 1, first; ; n++ {
		b := &s.blocks[i]
		if b.content != known || b.hash != h || s.blocks[b.right].left != i || n > len(s.blocks) {
			return 0, fmt.Errorf("ring of %v: block %d is %+v", h, i, *b)
		}
		if i = b.right; i == first {
			return n, nil
		}
	}
}

// check returns an error unless every entry can be found and the counts are right.
func (t *table) check() error {
	for i := range t.segments {
		g, used := &t.segments[i], 0
		for j := range g.slots {
			if e := &g.slots[j]; e.a|e.b != 0 {
				used++
				if t.find(e.hash) != e {
					return fmt.Errorf("table: %v is not found where it is", e.hash)
				}
			}
		}
		if used != g.used || 8*used < len(g.slots) && len(g.slots) > minSlots {
			return fmt.Errorf("table: segment %d of %d slots has %d entries, counted %d", i, len(g.slots), used, g.used)
		}
	}
	return nil
}
