package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// maxMetricsPage bounds an engine's metrics page, in bytes.
const maxMetricsPage = 4 << 20

// cacheCounters are vLLM's prefix cache counters, in tokens since the engine's start.
type cacheCounters struct {
	Queries float64 `json:"queries"` // prompt tokens that were looked up
	Hits    float64 `json:"hits"`    // of these, found in the cache
}

// hitRate is hits per query, 0 without queries.
func (c cacheCounters) hitRate() float64 {
	if c.Queries == 0 {
		return 0
	}
	return c.Hits / c.Queries
}

// readCounters sums the counters of all engines.
func readCounters(ctx context.Context, engines []string) (cacheCounters, error) {
	var sum cacheCounters
	for _, address := range engines {
		c, err := scrape(ctx, "http://"+address+"/metrics")
		if err != nil {
			return cacheCounters{}, fmt.Errorf("reading counters of engine %s: %w", address, err)
		}
		sum.Queries += c.Queries
		sum.Hits += c.Hits
	}
	return sum, nil
}

func scrape(ctx context.Context, url string) (cacheCounters, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return cacheCounters{}, err
	}
	resp, err := loopback.Do(req)
	if err != nil {
		return cacheCounters{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return cacheCounters{}, fmt.Errorf("status %d", resp.StatusCode)
	}
	return parseCounters(io.LimitReader(resp.Body, maxMetricsPage))
}

// parseCounters reads a page in Prometheus' text format; a page without the counters is an error.
func parseCounters(page io.Reader) (cacheCounters, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(page)
	if err != nil {
		return cacheCounters{}, fmt.Errorf("parsing metrics page: %w", err)
	}
	var c cacheCounters
	if c.Queries, err = sumCounter(families, "vllm:prefix_cache_queries_total"); err != nil {
		return cacheCounters{}, err
	}
	if c.Hits, err = sumCounter(families, "vllm:prefix_cache_hits_total"); err != nil {
		return cacheCounters{}, err
	}
	return c, nil
}

// sumCounter adds up a counter's series.
func sumCounter(families map[string]*dto.MetricFamily, name string) (float64, error) {
	f := families[name]
	if f == nil {
		return 0, fmt.Errorf("parsing metrics page: no %q", name)
	}
	sum := 0.0
	for _, m := range f.GetMetric() {
		sum += m.GetCounter().GetValue()
	}
	return sum, nil
}
