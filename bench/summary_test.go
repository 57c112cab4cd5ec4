package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPercentileIsNearestRank(t *testing.T) {
	t.Parallel()
	ms := func(ns ...int) []time.Duration {
		var ds []time.Duration
		for _, n := range ns {
			ds = append(ds, time.Duration(n)*time.Millisecond)
		}
		return ds
	}
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, tc := range []struct {
		name   string
		values []time.Duration
		p      float64
		want   int
	}{
		{"no values", nil, 50, 0},
		{"one value", ms(7), 99, 7},
		{"the lower middle of an even number", ms(1, 2, 3, 4), 50, 2},
		{"the middle of an odd number", ms(1, 2, 3), 50, 2},
		{"p99 of a hundred", ms(hundred...), 99, 99},
		{"p100 is the largest", ms(hundred...), 100, 100},
		{"p0 is the smallest", ms(hundred...), 0, 1},
		{"p99 of a few is the largest", ms(1, 2, 3, 50), 99, 50},
	} {
		if got := percentile(tc.values, tc.p); got != time.Duration(tc.want)*time.Millisecond {
			t.Errorf("%s: got %s, want %d ms", tc.name, got, tc.want)
		}
	}
}

func answer(at int, replica string, cached int, predicted *int) sample {
	d := time.Duration(at) * time.Second
	return sample{
		Session: "s", Scheduled: d, Sent: d + 2*time.Millisecond, FirstToken: d + time.Duration(at)*100*time.Millisecond, End: d + time.Second,
		Status: 200, Replica: replica, PromptTokens: 100, CachedTokens: cached, Predicted: predicted, Counted: new(100),
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	failed := answer(4, "b", 0, new(0))
	failed.Error = "status 500"
	miscounted := answer(5, "a", 16, nil)
	miscounted.Counted = new(99)
	samples := []sample{
		answer(3, "a", 32, new(16)), answer(1, "a", 16, new(16)), answer(2, "b", 16, new(32)),
		failed, miscounted, answer(6, "elsewhere", 0, new(0)),
	}
	w := &workload{Name: "chats", Dropped: 3}
	s := summarize(w, "cost_model", []string{"a", "b", "c"}, samples, 2, cacheCounters{Queries: 400, Hits: 100})
	if s.Requests != 6 || s.Errors != 2 || s.answered() != 4 || s.Skipped != 2 || s.Dropped != 3 {
		t.Errorf("counts: %+v", s)
	}
	if s.Exact != 1 || s.Over != 1 || s.Under != 1 || s.None != 1 || s.LengthOff != 1 {
		t.Errorf("predictions: %+v", s)
	}
	if !slices.Equal(s.PerReplica, []int{3, 2, 0}) {
		t.Errorf("per replica: %v", s.PerReplica)
	}
	if s.TTFTp50 != 200*time.Millisecond || s.TTFTp99 != 500*time.Millisecond {
		t.Errorf("TTFT %s and %s, of the answered requests' 100, 200, 300 and 500 ms", s.TTFTp50, s.TTFTp99)
	}
	if s.HitRate != 0.25 || s.SendLag != 2*time.Millisecond || s.MaxSendLag != 2*time.Millisecond || s.Wall != 7*time.Second {
		t.Errorf("hit rate %g, lag %s, wall %s", s.HitRate, s.SendLag, s.Wall)
	}
	if last := s.Samples[5]; last.Scheduled != 6*time.Second || !strings.Contains(last.Error, "elsewhere") {
		t.Errorf("the last sample is %+v", last)
	}
}

func TestSummaryOfNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	s := summarize(&workload{}, "p", []string{"a"}, nil, 0, cacheCounters{})
	if _, err := json.Marshal(s); err != nil {
		t.Error(err)
	}
	if got := strings.Join(s.tableRow(), " "); got != "p 0 0 0 0.0% 0 0 0 - - - - 0.00" {
		t.Errorf("row %q", got)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	w := &workload{Name: "mooncake", About: "a trace", Engine: traceEngine(), Dropped: 8}
	run := func(policy string, exact, requests int) *summary {
		return &summary{
			Policy: policy, Requests: requests, Dropped: 8, HitRate: 0.0625, TTFTp50: 123_400 * time.Microsecond, TTFTp99: 2 * time.Second,
			PerReplica: []int{1, 20, 3}, Exact: exact, Under: requests - exact, SendLag: 1234 * time.Microsecond,
		}
	}
	skipping := run("cost_model", 1000, 1000)
	skipping.Skipped, skipping.LengthOff, skipping.MaxSendLag = 2, 1, 1500*time.Millisecond
	var b strings.Builder
	report(&b, w, []*summary{run("rr", 9999, 10_000), skipping})
	want := `mooncake: a trace.
3 engines, 4096 KV blocks of 16 tokens and a context of 8192 each; a fresh process, with cold caches, per policy.

policy      requests  errors  dropped  hit rate  TTFT p50  p99 ms  per replica   exact  over  under  none  send lag ms
rr             10000       0        8      6.2%       123    2000       1/20/3   99.9%  0.0%   0.0%  0.0%         1.23
cost_model      1000       0        8      6.2%       123    2000       1/20/3  100.0%  0.0%   0.0%  0.0%         1.23
cost_model: 2 later turns of failed chats were not sent.
cost_model: the router and the engine counted 1 prompts differently.
cost_model: a request went out 1500 ms late. This machine was busy with something else: do not compare times.

`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestRenderTableCountsCharactersNotBytes(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	renderTable(&b, [][]string{{"für", "a"}, {"x", "größe"}, {"only"}})
	if want := "für       a\nx     größe\nonly\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestParseCounters(t *testing.T) {
	t.Parallel()
	page := `# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 300.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 1.5e+06
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 48.0
`
	got, err := parseCounters(strings.NewReader(page))
	if want := (cacheCounters{Queries: 1_500_300, Hits: 48}); err != nil || got != want {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for name, page := range map[string]string{
		"a page without the counters": "# TYPE up gauge\nup 1\n",
		"no page at all":              "<html>",
	} {
		if _, err := parseCounters(strings.NewReader(page)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
