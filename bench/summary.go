package main

import (
	"math"
	"slices"
	"time"
)

// A summary is one run: one workload under one policy.
type summary struct {
	Workload string `json:"workload"`
	Policy   string `json:"policy"`

	Requests int `json:"requests"` // sent
	Errors   int `json:"errors"`   // of these, failed
	Skipped  int `json:"skipped"`  // turns not sent because an earlier one of their chat failed
	Dropped  int `json:"dropped"`  // rows of the trace that the engines could not hold

	Engines    cacheCounters `json:"engines"`     // over the run
	HitRate    float64       `json:"hit_rate"`    // hits per query of the engines' counters; 0 without queries
	TTFTp50    time.Duration `json:"ttft_p50_ns"` // of the requests that did not fail, from their schedule
	TTFTp99    time.Duration `json:"ttft_p99_ns"` //
	PerReplica []int         `json:"per_replica"` // requests, in the order of the router's configuration
	Exact      int           `json:"exact"`       // answered requests whose predicted cached tokens equal the engine's count
	Over       int           `json:"over"`        // more predicted than counted
	Under      int           `json:"under"`       // fewer
	None       int           `json:"none"`        // no prediction
	LengthOff  int           `json:"length_off"`  // answered requests whose prompt the router and the engine count differently
	SendLag    time.Duration `json:"send_lag_ns"` // mean, from a request's schedule to the end of its writing
	MaxSendLag time.Duration `json:"max_lag_ns"`  // largest
	Wall       time.Duration `json:"wall_ns"`     // from the start of the run to the last answer
	Samples    []sample      `json:"samples"`     // by schedule
}

// answered is the number of requests that did not fail.
func (s *summary) answered() int { return s.Requests - s.Errors }

// summarize computes a run's summary. replicas are the names that the router gives its engines, in order; requests
// that name none of them count as failed.
func summarize(w *workload, policy string, replicas []string, samples []sample, skipped int, engines cacheCounters) *summary {
	s := &summary{
		Workload: w.Name, Policy: policy,
		Requests: len(samples), Skipped: skipped, Dropped: w.Dropped,
		Engines: engines, HitRate: engines.hitRate(),
		PerReplica: make([]int, len(replicas)),
		Samples:    samples,
	}
	slices.SortStableFunc(s.Samples, func(a, b sample) int { return int(a.Scheduled - b.Scheduled) })
	var ttfts []time.Duration
	var lag time.Duration
	for i := range s.Samples {
		r := &s.Samples[i]
		s.Wall = max(s.Wall, r.End)
		replica := slices.Index(replicas, r.Replica)
		if r.Error == "" && replica < 0 {
			r.Error = "the answer names no replica of the fleet: " + r.Replica
		}
		if replica >= 0 {
			s.PerReplica[replica]++
		}
		if r.Error != "" {
			s.Errors++
			continue
		}
		ttfts = append(ttfts, r.FirstToken-r.Scheduled)
		lag += r.Sent - r.Scheduled
		s.MaxSendLag = max(s.MaxSendLag, r.Sent-r.Scheduled)
		s.judge(r)
	}
	slices.Sort(ttfts)
	s.TTFTp50, s.TTFTp99 = percentile(ttfts, 50), percentile(ttfts, 99)
	if n := s.answered(); n > 0 {
		s.SendLag = lag / time.Duration(n)
	}
	return s
}

// judge counts how an answered request's prediction turned out.
func (s *summary) judge(r *sample) {
	switch {
	case r.Predicted == nil:
		s.None++
	case *r.Predicted == r.CachedTokens:
		s.Exact++
	case *r.Predicted > r.CachedTokens:
		s.Over++
	default:
		s.Under++
	}
	if r.Counted != nil && *r.Counted != r.PromptTokens {
		s.LengthOff++
	}
}

// percentile is the nearest-rank percentile of sorted values: the smallest value that at least p percent of them do not
// exceed; 0 without values.
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}
