package simulator

import (
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func metricsOf(t *testing.T, s *Simulator) string {
	t.Helper()
	w := httptest.NewRecorder()
	serve(t, s, w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=1.0.0; charset=utf-8" {
		t.Errorf("content type %q", got)
	}
	return w.Body.String()
}

var (
	createdLine = regexp.MustCompile(`(?m)^(\S*_created(?:\{.*\})?) \S+$`)
	memoryLabel = regexp.MustCompile(`kv_cache_memory_bytes="[^"]*"`)
)

func TestMetricsPageIsVLLMs(t *testing.T) {
	want, err := os.ReadFile("testdata/metrics-idle.txt")
	if err != nil {
		t.Fatal(err)
	}
	clean := func(s string) []string {
		s = createdLine.ReplaceAllString(s, "$1 0")
		return strings.Split(memoryLabel.ReplaceAllString(s, ""), "\n")
	}
	var got []string
	for _, line := range clean(metricsOf(t, serverA(t))) {
		if !strings.Contains(line, "process_start_time_seconds") {
			got = append(got, line)
		}
	}
	wantLines := clean(string(want))
	for i, line := range wantLines {
		if i >= len(got) || got[i] != line {
			t.Fatalf("line %d\n got %q\nwant %q", i+1, got[min(i, len(got)-1)], line)
		}
	}
	if len(got) != len(wantLines) {
		t.Errorf("%d lines, want %d", len(got), len(wantLines))
	}
}

func TestMetricsCountRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Simulator{Model: "m", Instance: t.Name()}
		provision(t, s)
		running := make(chan string)
		go func() {
			time.Sleep(30 * time.Millisecond)
			running <- metricsOf(t, s)
		}()
		body := `{"prompt":` + ids(1, 100) + `,"max_tokens":3}`
		serve(t, s, httptest.NewRecorder(), completion(t.Context(), body))
		during := <-running
		serve(t, s, httptest.NewRecorder(), completion(t.Context(), body))
		synctest.Wait()
		const labels = `{engine="0",model_name="m"} `
		for _, want := range []string{
			"vllm:num_requests_running" + labels + "1.0\n",
			"vllm:kv_cache_usage_perc" + labels + "0.0017094017094017",
		} {
			if !strings.Contains(during, want) {
				t.Errorf("while a request runs: %q is missing", want)
			}
		}
		after := metricsOf(t, s)
		for _, want := range []string{
			"vllm:num_requests_running" + labels + "0.0\n",
			"vllm:kv_cache_usage_perc" + labels + "0.0\n",
			"vllm:prefix_cache_queries_total" + labels + "200.0\n",
			"vllm:prefix_cache_hits_total" + labels + "96.0\n",
			"vllm:prompt_tokens_total" + labels + "200.0\n",
			"vllm:prompt_tokens_cached_total" + labels + "96.0\n",
			`vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 104.0` + "\n",
			"vllm:generation_tokens_total" + labels + "6.0\n",
			`vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 2.0` + "\n",
			"vllm:time_to_first_token_seconds_count" + labels + "2.0\n",
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.02",model_name="m"} 2.0` + "\n",
			`vllm:time_to_first_token_seconds_bucket{engine="0",le="0.01",model_name="m"} 1.0` + "\n",
			"vllm:inter_token_latency_seconds_count" + labels + "4.0\n",
			"vllm:inter_token_latency_seconds_sum" + labels + "0.08\n",
			"vllm:iteration_tokens_total_count" + labels + "6.0\n",
			"vllm:iteration_tokens_total_sum" + labels + "110.0\n",
			"vllm:request_params_max_tokens_sum" + labels + "6.0\n",
		} {
			if !strings.Contains(after, want) {
				t.Errorf("after the requests: %q is missing", want)
			}
		}
	})
}

func TestFloatsAreFormattedAsPrometheusClientDoes(t *testing.T) {
	for _, tc := range []struct {
		in   float64
		want string
	}{
		{0, "0.0"}, {1, "1.0"}, {423383, "423383.0"}, {1234567, "1.234567e+06"}, {1e6, "1e+06"},
		{1796079403.2266798, "1.7960794032266798e+09"}, {1.796079403226864e9, "1.796079403226864e+09"},
		{111.34878301620483, "111.34878301620483"}, {1e-5, "1e-05"}, {0.001, "0.001"}, {1e17, "1e+17"},
		{math.Inf(1), "+Inf"}, {math.NaN(), "NaN"}, {-2, "-2.0"},
	} {
		if got := string(appendFloat(nil, tc.in)); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.in, got, tc.want)
		}
	}
}
