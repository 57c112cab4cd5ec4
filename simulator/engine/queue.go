package engine

import "container/heap"

// queue is a binary heap of requests; before orders it and must be a strict total order. A request is in at
// most one queue and knows its place, so that it can be withdrawn in O(log n).
type queue struct {
	items  []*sequence
	before func(a, b *sequence) bool
}

// byArrival orders requests that no step has seen yet.
func byArrival(a, b *sequence) bool {
	if a.req.Arrival != b.req.Arrival {
		return a.req.Arrival < b.req.Arrival
	}
	return a.added < b.added
}

// byTurn is first come, first served; a preempted request gets a turn before all others.
func byTurn(a, b *sequence) bool { return a.turn < b.turn }

// byPriority is vLLM's Request.__lt__ (v1/request.py), with the order of Add in place of the request id.
func byPriority(a, b *sequence) bool {
	if a.req.Priority != b.req.Priority {
		return a.req.Priority < b.req.Priority
	}
	return byArrival(a, b)
}

func (q *queue) push(s *sequence) { heap.Push((*heapItems)(q), s) }

// pop takes out the first request, which peek has shown.
func (q *queue) pop() { heap.Pop((*heapItems)(q)) }

// peek returns the first request, nil if there is none.
func (q *queue) peek() *sequence {
	if len(q.items) == 0 {
		return nil
	}
	return q.items[0]
}

func (q *queue) remove(s *sequence) { heap.Remove((*heapItems)(q), s.place) }

func (q *queue) len() int { return len(q.items) }

// heapItems gives container/heap its methods without putting them on queue.
type heapItems queue

func (h *heapItems) Len() int           { return len(h.items) }
func (h *heapItems) Less(i, j int) bool { return h.before(h.items[i], h.items[j]) }

func (h *heapItems) Swap(i, j int) {
	h.items[i], h.items[j] = h.items[j], h.items[i]
	h.items[i].place, h.items[j].place = i, j
}

func (h *heapItems) Push(x any) {
	s := x.(*sequence)
	s.place = len(h.items)
	h.items = append(h.items, s)
}

func (h *heapItems) Pop() any {
	last := len(h.items) - 1
	s := h.items[last]
	h.items[last] = nil // let go of the request
	h.items = h.items[:last]
	return s
}
