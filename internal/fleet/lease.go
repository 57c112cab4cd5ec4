package fleet

import "time"

// Lease stands for one attempt of a request at a replica, from the moment it is sent to its end.
//
// The steps are ResponseHead, FirstByte and Release. Each counts once, however often it is called, and each implies those
// before it, so that a lost or late call cannot leave a counter behind; after Release all of them do nothing.
type Lease struct {
	replica      *Replica
	promptTokens int

	// Guarded by replica.mu.
	stage      stage
	queued     time.Duration // this request's share of the queue that is still left in it
	prev, next *Lease        // neighbours in the queue, while queued is not 0
}

type stage uint8

const (
	sent stage = iota
	headed
	streaming
	ended
)

// Replica is the one that the lease was taken from.
func (l *Lease) Replica() *Replica { return l.replica }

// ResponseHead says that the response head has come.
func (l *Lease) ResponseHead(now time.Duration) { l.reach(now, headed) }

// FirstByte says that the first byte of the response body has come: the engine is done with the prompt.
func (l *Lease) FirstByte(now time.Duration) { l.reach(now, streaming) }

// Release says that the request has ended: answered, failed, or given up.
func (l *Lease) Release(now time.Duration) { l.reach(now, ended) }

func (l *Lease) reach(now time.Duration, s stage) {
	r := l.replica
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue.drain(now)
	if l.stage < headed && s >= headed {
		r.load.Waiting--
	}
	if l.stage < streaming && s >= streaming {
		r.load.AwaitingFirstByte--
		r.load.QueuedPromptTokens -= l.promptTokens
		r.queue.remove(l)
	}
	if l.stage < ended && s >= ended {
		r.load.InFlight--
		r.load.PromptTokens -= l.promptTokens
	}
	l.stage = max(l.stage, s)
}
