package caddymodule

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/inferrail/inferrail/policies"
)

// metrics are the router's collectors. One set lives as long as the process uses the router; each configuration registers
// it on its own registry, so that counters keep their values over reloads.
//
// Labels are bounded: models and policies are configured, replicas are the fleet's, reasons are constants.
type metrics struct {
	requests        *prometheus.CounterVec
	ttft            *prometheus.HistogramVec
	duration        *prometheus.HistogramVec
	decisions       *prometheus.CounterVec
	decisionSeconds *prometheus.HistogramVec
	retries         *prometheus.CounterVec
	disconnects     *prometheus.CounterVec
	errors          *prometheus.CounterVec
	tokenized       *prometheus.CounterVec
	tokenizeSeconds *prometheus.HistogramVec
	promptTokens    *prometheus.CounterVec
	predictedTokens *prometheus.CounterVec
	deliveredTokens *prometheus.CounterVec
	mismatches      *prometheus.CounterVec
	estimatedTTFT   *prometheus.HistogramVec
	guards          *prometheus.CounterVec
	indexResets     *prometheus.CounterVec
	fleet           *fleetCollector
	all             []prometheus.Collector

	bodyBytes atomic.Int64 // of the request bodies held
}

// Buckets from 1 ms to about two minutes, for what engines take.
var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 40, 80, 120}

// Buckets from 1 µs to 50 ms, for what the router takes.
var routerBuckets = []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2}

// metricsKey is the one key of metricsPool.
const metricsKey = "metrics"

func acquireMetrics() *metrics {
	v, _, _ := metricsPool.LoadOrNew(metricsKey, func() (caddy.Destructor, error) { return newMetrics(), nil })
	return v.(*metrics)
}

func releaseMetrics() { _, _ = metricsPool.Delete(metricsKey) }

// Destruct is called when no configuration uses the router.
func (m *metrics) Destruct() error { return nil }

func newMetrics() *metrics {
	m := new(metrics)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "inferrail", Name: name, Help: help}, labels)
		m.all = append(m.all, c)
		return c
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: "inferrail", Name: name, Help: help, Buckets: buckets}, labels)
		m.all = append(m.all, h)
		return h
	}
	m.requests = counter("requests_total", "Inference requests by outcome: a status class, aborted when the engine broke a "+
		"started response, cancelled when the client left.", "model", "replica", "status")
	m.ttft = histogram("ttft_seconds", "From a request's arrival to the first byte of its streamed response.",
		latencyBuckets, "model", "policy", "replica")
	m.duration = histogram("request_duration_seconds", "From a request's arrival to the end of its response.",
		latencyBuckets, "model", "policy", "replica")
	m.decisions = counter("routing_decisions_total", "The policy's choices, one per attempt.", "model", "policy", "replica")
	m.decisionSeconds = histogram("routing_decision_seconds", "Time to choose a replica and take a lease on it.",
		routerBuckets, "policy")
	m.retries = counter("upstream_retries_total", "Attempts that ended before the first byte and were followed by another.",
		"model")
	m.disconnects = counter("client_disconnects_total", "Responses that the client left before their end.", "model")
	m.errors = counter("request_errors_total", "Errors that the router answered itself.", "model", "reason")
	m.tokenized = counter("tokenized_requests_total", "Prompts that were tokenized (ok), or why a request was routed "+
		"without a prediction.", "model", "result")
	m.tokenizeSeconds = histogram("tokenize_seconds", "Time to tokenize and hash a prompt, waiting for a worker included.",
		routerBuckets, "model")
	m.promptTokens = counter("prompt_tokens_total", "Prompt tokens of routed requests, per decision.", "model")
	m.predictedTokens = counter("predicted_cached_tokens_total",
		"Prompt tokens predicted to be in the chosen replica's KV cache, per decision.", "model")
	m.deliveredTokens = counter("delivered_cached_tokens_total",
		"Prompt tokens that the engines report to have served from their KV cache.", "model")
	m.mismatches = counter("prompt_token_mismatches_total", "Prompts whose length in tokens the engine reports differently: "+
		"the model's tokenizer or chat template is not the engine's.", "model")
	m.estimatedTTFT = histogram("estimated_ttft_seconds",
		"The policy's estimate of the time to first token on the chosen replica, per decision.", latencyBuckets,
		"model", "policy")
	m.guards = counter("routing_guards_total", "Decisions in which a guard set replicas aside.", "model", "guard")
	m.indexResets = counter("index_resets_total", "Engines found restarted, whose cache is taken as empty.", "replica")
	m.fleet = newFleetCollector()
	m.all = append(m.all, m.fleet, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "inferrail", Name: "buffered_bytes", Help: "Bytes of request bodies that the router holds.",
	}, func() float64 { return float64(m.bodyBytes.Load()) }))
	return m
}

// register puts the collectors on a configuration's registry.
func (m *metrics) register(reg prometheus.Registerer) error {
	var faults []error
	for _, c := range m.all {
		err := reg.Register(c)
		if already := (prometheus.AlreadyRegisteredError{}); errors.As(err, &already) && already.ExistingCollector == c {
			continue
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

func (m *metrics) decided(req *request, a *attempt, took time.Duration) {
	m.decisions.WithLabelValues(req.model.Name, a.policy, a.replica.key.address).Inc()
	m.decisionSeconds.WithLabelValues(a.policy).Observe(took.Seconds())
	if a.predicted >= 0 {
		m.promptTokens.WithLabelValues(req.model.Name).Add(float64(req.promptTokens))
		m.predictedTokens.WithLabelValues(req.model.Name).Add(float64(a.predicted))
	}
}

func (m *metrics) estimated(req *request, a *attempt, d *policies.Decision) {
	if len(d.Estimates) == 0 {
		return
	}
	m.estimatedTTFT.WithLabelValues(req.model.Name, a.policy).Observe(d.Estimates[d.Winner].TTFT.Seconds())
	for _, e := range d.Estimates {
		if e.Guard != "" {
			m.guards.WithLabelValues(req.model.Name, e.Guard).Inc()
			return
		}
	}
}

func (m *metrics) retried(req *request) { m.retries.WithLabelValues(req.model.Name).Inc() }

// delivered takes in what the engine says of a request's tokens, and reports whether its prompt was as long as tokenized.
func (m *metrics) delivered(req *request, o observation) (sameLength bool) {
	if o.cached >= 0 {
		m.deliveredTokens.WithLabelValues(req.model.Name).Add(float64(o.cached))
	}
	if req.prompt == nil || o.prompt == 0 || o.prompt == req.promptTokens {
		return true
	}
	m.mismatches.WithLabelValues(req.model.Name).Inc()
	return false
}

func (m *metrics) addReplica(r *replica) { m.fleet.add(r) }

// removeReplica forgets a replica and the series that name it.
func (m *metrics) removeReplica(r *replica) {
	if last := m.fleet.remove(r); !last {
		return
	}
	label := prometheus.Labels{"replica": r.key.address}
	m.requests.DeletePartialMatch(label)
	m.ttft.DeletePartialMatch(label)
	m.duration.DeletePartialMatch(label)
	m.decisions.DeletePartialMatch(label)
	m.indexResets.DeletePartialMatch(label)
}

// fleetCollector reads the replicas' gauges when they are scraped.
type fleetCollector struct {
	inFlight, promptTokens, queued, blocks, capacity  *prometheus.Desc
	running, waiting, kvUsage, age, entries, indexMem *prometheus.Desc

	mu       sync.Mutex
	replicas map[*replica]bool
}

func newFleetCollector() *fleetCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("inferrail_"+name, help, labels, nil)
	}
	perReplica := []string{"fleet", "replica"}
	return &fleetCollector{
		inFlight:     desc("replica_in_flight_requests", "Requests sent to the replica that have not ended.", perReplica...),
		promptTokens: desc("replica_in_flight_prompt_tokens", "Prompt tokens of the requests in flight.", perReplica...),
		queued:       desc("replica_queued_prefill_seconds", "Estimated prefill work waiting at the replica.", perReplica...),
		blocks:       desc("replica_index_blocks", "KV blocks that the index believes the replica holds.", perReplica...),
		capacity:     desc("replica_index_capacity_blocks", "KV blocks that the index assumes the replica has.", perReplica...),
		running:      desc("replica_engine_running_requests", "Running requests, from the engine's last report.", perReplica...),
		waiting:      desc("replica_engine_waiting_requests", "Waiting requests, from the engine's last report.", perReplica...),
		kvUsage:      desc("replica_engine_kv_usage_ratio", "KV cache in use, from the engine's last report.", perReplica...),
		age:          desc("replica_engine_report_age_seconds", "Age of the engine's last report.", perReplica...),
		entries:      desc("index_entries", "Block hashes that the index holds.", "fleet"),
		indexMem:     desc("index_bytes", "Estimated memory of the index.", "fleet"),
		replicas:     make(map[*replica]bool),
	}
}

func (c *fleetCollector) add(r *replica) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas[r] = true
}

// remove forgets r and tells whether no other fleet has a replica at its address.
func (c *fleetCollector) remove(r *replica) (last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.replicas, r)
	for other := range c.replicas {
		if other.key.address == r.key.address {
			return false
		}
	}
	return true
}

// snapshot lists the replicas, each of which appears once per fleet and address.
func (c *fleetCollector) snapshot() map[replicaKey]*replica {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[replicaKey]*replica, len(c.replicas))
	for r := range c.replicas {
		out[r.key] = r
	}
	return out
}

// Describe sends the descriptions of all gauges.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.inFlight, c.promptTokens, c.queued, c.blocks, c.capacity, c.running, c.waiting, c.kvUsage, c.age, c.entries, c.indexMem,
	} {
		ch <- d
	}
}

// Collect reads the gauges.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	at := now()
	fleets := make(map[string]*fleetState)
	for key, r := range c.snapshot() {
		fleets[key.fleet] = r.fleet
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, key.fleet, key.address)
		}
		load := r.counters.Load(at)
		gauge(c.inFlight, float64(load.InFlight))
		gauge(c.promptTokens, float64(load.PromptTokens))
		gauge(c.queued, load.QueuedPrefill.Seconds())
		if stats, ok := r.indexStats(); ok {
			gauge(c.blocks, float64(stats.Blocks))
			gauge(c.capacity, float64(stats.Capacity))
		}
		if report, age, ok := r.counters.Report(at); ok {
			gauge(c.running, float64(report.Running))
			gauge(c.waiting, float64(report.Waiting))
			gauge(c.kvUsage, report.KVUsage)
			gauge(c.age, age.Seconds())
		}
	}
	for name, f := range fleets {
		stats := f.index.Stats()
		ch <- prometheus.MustNewConstMetric(c.entries, prometheus.GaugeValue, float64(stats.Entries), name)
		ch <- prometheus.MustNewConstMetric(c.indexMem, prometheus.GaugeValue, float64(stats.Bytes), name)
	}
}
