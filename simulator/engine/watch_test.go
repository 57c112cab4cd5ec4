package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/inferrail/inferrail/index"
)

// watcher drives an engine and checks each step from outside: against what was asked for, and against a cache
// rebuilt from the KV events alone.
type watcher struct {
	t    tester
	e    *Engine
	cfg  Config
	open map[uint64]*watched
	// gone are aborted requests: they may give no output any more.
	gone   map[uint64]bool
	added  int
	rounds int
	clears int
	end    time.Duration
	copies map[index.Hash]int // stored minus removed
	first  []*watched         // in the order they were first scheduled
}

type watched struct {
	Request
	added   int
	outputs int
	sched   time.Duration
	round   int // of plan, that first found the request arrived
	seen    bool
}

func newWatcher(t tester, cfg Config) *watcher {
	return &watcher{
		t: t, e: mustNew(t, cfg), cfg: cfg, open: map[uint64]*watched{}, gone: map[uint64]bool{}, copies: map[index.Hash]int{},
	}
}

func (w *watcher) add(r Request) {
	w.added++
	q := &watched{Request: r, added: w.added}
	r.Next = func(i int) uint32 {
		if i != q.outputs {
			w.t.Fatalf("request %d: asked for token %d after %d", r.ID, i, q.outputs)
		}
		return generated(r.ID, i)
	}
	mustAdd(w.t, w.e, r)
	w.open[r.ID] = q
}

// generated is what requests with equal id modulo 4 produce, so that later prompts can continue them.
func generated(id uint64, i int) uint32 { return uint32(id%4)<<16 | uint32(i) }

func (w *watcher) abort(id uint64) {
	_, open := w.open[id]
	if got := w.e.Abort(id); got != open {
		w.t.Fatalf("abort of request %d gives %v, held: %v", id, got, open)
	}
	delete(w.open, id)
	w.gone[id] = true
	checkInvariants(w.t, w.e)
}

func (w *watcher) reset() {
	used := w.e.pool.used()
	if got := w.e.ResetPrefixCache(); got != (used == 0) {
		w.t.Fatalf("reset gives %v with %d blocks in use", got, used)
	} else if got && w.cfg.EnablePrefixCaching && w.cfg.KVEvents {
		w.clears = min(w.clears+1, maxPendingClears)
	}
	if used == 0 && w.e.pool.cached != 0 {
		w.t.Fatalf("%d blocks cached after a reset", w.e.pool.cached)
	}
}

// plan plans a step at now; it reports whether there was work.
func (w *watcher) plan(now time.Duration) bool {
	if w.e.planned {
		return true
	}
	end, ok := w.e.Schedule(now)
	if ok {
		if again, ok := w.e.Schedule(now + time.Hour); !ok || again != end {
			w.t.Fatalf("a planned step ends at %v, then at %v (%v)", end, again, ok)
		}
	}
	w.rounds++
	for _, q := range w.open {
		if !ok && q.Arrival <= max(now, w.end) {
			w.t.Fatalf("no step at %v although request %d has arrived at %v", now, q.ID, q.Arrival)
		}
		if ok && q.round == 0 && q.Arrival <= w.e.start {
			q.round = w.rounds
		}
	}
	checkInvariants(w.t, w.e)
	return ok
}

func (w *watcher) complete() {
	// Requests whose first output comes later are seen scheduled through the engine's own record.
	for _, s := range w.e.plan {
		if q := w.open[s.req.ID]; q != nil && !q.seen {
			q.seen = true
			q.sched = s.times.Scheduled
			w.first = append(w.first, q)
		}
	}
	r := w.e.Complete()
	checkInvariants(w.t, w.e)
	if r.Start < w.end || r.End < r.Start {
		w.t.Fatalf("step from %v to %v after one that ended at %v", r.Start, r.End, w.end)
	}
	w.end = r.End
	if r.Scheduled < 1 || r.Scheduled > w.cfg.MaxNumBatchedTokens {
		w.t.Fatalf("%d tokens in a step of at most %d", r.Scheduled, w.cfg.MaxNumBatchedTokens)
	}
	if r.CacheHits > r.CacheQueries || !w.cfg.EnablePrefixCaching && r.CacheQueries != 0 {
		w.t.Fatalf("%d hits of %d queries", r.CacheHits, r.CacheQueries)
	}
	for _, o := range r.Outputs {
		w.output(o, r)
	}
	w.events(r.Events)
}

func (w *watcher) output(o Output, r StepResult) {
	q := w.open[o.ID]
	if q == nil {
		w.t.Fatalf("output of request %d, which is gone: %v", o.ID, w.gone[o.ID])
	}
	if o.Index != q.outputs || o.Token != generated(o.ID, o.Index) || o.First != (o.Index == 0) || o.First != slices.Contains(r.PromptDone, o.ID) {
		w.t.Fatalf("request %d: token %+v after %d", o.ID, o, q.outputs)
	}
	q.outputs++
	size := w.cfg.BlockSize
	if o.Cached < 0 || o.Cached >= len(q.Prompt) || o.Cached%size != 0 || (q.SkipCache || !w.cfg.EnablePrefixCaching) && o.Cached != 0 {
		w.t.Fatalf("request %d: %d of %d tokens cached", o.ID, o.Cached, len(q.Prompt))
	}
	if want := len(q.Prompt)/size*size - o.Cached; w.cfg.EnablePrefixCaching && o.Created != want || !w.cfg.EnablePrefixCaching && o.Created != 0 {
		w.t.Fatalf("request %d: %d tokens newly cached, want %d", o.ID, o.Created, want)
	}
	t := o.Times
	if t.Arrival != q.Arrival || t.Scheduled < t.Arrival || t.Scheduled != q.sched || t.FirstToken < t.Scheduled || t.LastToken != r.End {
		w.t.Fatalf("request %d: times %+v", o.ID, t)
	}
	want := FinishReason("")
	if q.outputs == q.StopAfter {
		want = FinishStop
	} else if q.outputs == q.MaxTokens {
		want = FinishLength
	}
	if o.Finish != want {
		w.t.Fatalf("request %d: finish %q after %d tokens, want %q", o.ID, o.Finish, q.outputs, want)
	}
	if want != "" {
		delete(w.open, o.ID)
	}
}

func (w *watcher) events(events []Event) {
	for i, ev := range events {
		switch ev.Kind {
		case AllBlocksCleared:
			if i > 0 && events[i-1].Kind != AllBlocksCleared {
				w.t.Fatalf("event %d clears, but does not lead", i)
			}
			w.clears--
			clear(w.copies)
		case BlockRemoved:
			if len(ev.Hashes) != 1 || w.copies[ev.Hashes[0]] == 0 {
				w.t.Fatalf("removed %v, of which there is no copy", ev.Hashes)
			}
			if w.copies[ev.Hashes[0]]--; w.copies[ev.Hashes[0]] == 0 {
				delete(w.copies, ev.Hashes[0])
			}
		case BlockStored:
			w.stored(ev)
		}
	}
	cached := 0
	for h, n := range w.copies {
		cached += n
		if w.e.pool.lookup(h) == noBlock {
			w.t.Fatalf("%v is cached by the events, not in the engine", h)
		}
	}
	if got := w.e.Stats().CachedBlocks; w.cfg.KVEvents && got != cached {
		w.t.Fatalf("%d blocks cached, by the events %d", got, cached)
	}
	if w.clears != 0 {
		w.t.Fatalf("%d clears not published", w.clears)
	}
}

func (w *watcher) stored(ev Event) {
	size := w.cfg.BlockSize
	if len(ev.Hashes) == 0 || len(ev.Tokens) != len(ev.Hashes)*size {
		w.t.Fatalf("%d tokens stored in %d blocks of %d", len(ev.Tokens), len(ev.Hashes), size)
	}
	parent := index.Root("m", "", "", size)
	if ev.HasParent {
		parent = ev.Parent
	}
	for i, h := range ev.Hashes {
		if parent = index.Next(parent, ev.Tokens[i*size:(i+1)*size]); parent != h {
			w.t.Fatalf("block %d of %d is not the hash of its tokens", i, len(ev.Hashes))
		}
		w.copies[h]++
	}
}

// finish runs the engine dry and checks what must hold then.
func (w *watcher) finish(now time.Duration) {
	for range 1_000_000 {
		if w.plan(now) {
			w.complete()
			continue
		}
		if len(w.open) == 0 {
			break
		}
		now += time.Second // requests still to come
	}
	g := w.e.Stats()
	if len(w.open) != 0 || w.e.Len() != 0 || g.Running != 0 || g.Waiting != 0 || g.UsedBlocks != 0 || g.Usage != 0 {
		w.t.Fatalf("%d requests open, %d held at the end: %+v", len(w.open), w.e.Len(), g)
	}
	if !w.cfg.EnablePrefixCaching && g.CachedBlocks != 0 {
		w.t.Fatalf("%d blocks cached without prefix caching", g.CachedBlocks)
	}
	if w.cfg.PriorityScheduling {
		return
	}
	for i := 1; i < len(w.first); i++ {
		a, b := w.first[i-1], w.first[i]
		if cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.added, b.added)) > 0 {
			w.t.Fatalf("request %d, arrived at %v, was scheduled before request %d, arrived at %v", a.ID, a.Arrival, b.ID, b.Arrival)
		}
	}
}
