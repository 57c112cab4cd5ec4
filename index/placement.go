package index

// Placement is one prompt that was sent to one replica. Its methods are safe for concurrent use, also on a nil
// Placement and after the replica was reset or removed; the first one that is called settles the placement and all
// later calls do nothing.
type Placement struct {
	replica    *Replica // nil when nothing was recorded
	generation uint64
	settled    bool    // guarded by replica.mu
	holding    holding // guarded by replica.mu
}

// Finish tells that the engine served the prompt, or was cut off, after it generated outputTokens tokens. Numbers
// below 1 count as 1, as an engine that computed a prompt has sampled a token.
func (pl *Placement) Finish(outputTokens int) { pl.FinishWith(outputTokens, nil) }

// FinishWith is Finish with the generated tokens, so that a later prompt that goes on with any part of them is known to
// be held. There must be outputTokens of them, or one less: the last one sampled is never computed. With any other
// number they are taken as unknown.
func (pl *Placement) FinishWith(outputTokens int, generated []uint32) {
	if len(generated) > outputTokens {
		generated = nil
	}
	pl.settle(func(s *shadow) { s.finish(&pl.holding, outputTokens, generated) })
}

// TakeBack tells that the engine never computed the prompt: it refused it, or could not be reached. The replica's
// state becomes what it would be without the placement: exactly when nothing else happened there meanwhile, and as
// far as it can be told otherwise; what other placements hit by then is kept.
func (pl *Placement) TakeBack() {
	pl.settle(func(s *shadow) { s.takeBack(&pl.holding) })
}

func (pl *Placement) settle(end func(*shadow)) {
	if pl == nil || pl.replica == nil {
		return
	}
	r := pl.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	if pl.settled {
		return
	}
	pl.settled = true
	if pl.generation == r.generation {
		end(r.shadow)
		r.shadow.publishRest()
	}
	pl.holding = holding{}
}
