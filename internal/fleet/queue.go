package fleet

import "time"

// queue is the prefill that waits on a replica, by estimate: a share for each request that awaits its first byte.
//
// The shares drain in real time in the order in which the requests were sent, as engines compute prompts first come, first
// served. A request's first byte, or its end without one, takes out what is left of its share and no more. So the queue is
// never negative, is empty once no request awaits its first byte, and one request that hangs holds at most its own estimate in
// it. A request that takes longer than estimated has drained by then and delays nobody on paper.
//
// Every call takes amortised constant time: a share leaves the list once.
type queue struct {
	head, tail *Lease        // in order of arrival; each with a share left
	total      time.Duration // sum of the shares
	asOf       time.Duration // the moment until which draining is accounted for
}

// at gives the prefill left at now.
func (q *queue) at(now time.Duration) time.Duration {
	return max(0, q.total-max(0, now-q.asOf))
}

// push adds l's share at the end, once the queue has been drained.
func (q *queue) push(l *Lease) {
	if l.queued == 0 {
		return
	}
	l.prev = q.tail
	if q.tail != nil {
		q.tail.next = l
	} else {
		q.head = l
	}
	q.tail = l
	q.total += l.queued
}

// remove takes out what draining has left of l's share.
func (q *queue) remove(l *Lease) {
	if l.queued > 0 {
		q.unlink(l)
	}
}

// drain accounts for the time until now, before anything else is done to the queue. Callers may read the clock before they get the lock, so now can lie before asOf;
// time does not run back.
func (q *queue) drain(now time.Duration) {
	elapsed := now - q.asOf
	if elapsed <= 0 {
		return
	}
	q.asOf = now
	for q.head != nil && q.head.queued <= elapsed {
		elapsed -= q.head.queued
		q.unlink(q.head)
	}
	if q.head != nil {
		q.head.queued -= elapsed
		q.total -= elapsed
	}
}

// unlink takes l out of the list together with what is left of its share.
func (q *queue) unlink(l *Lease) {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		q.head = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	} else {
		q.tail = l.prev
	}
	q.total -= l.queued
	l.prev, l.next, l.queued = nil, nil, 0
}
