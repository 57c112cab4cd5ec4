package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/inferrail/inferrail/internal/fleet"
)

const (
	probeTimeout    = 2 * time.Second
	maxMetricsBytes = 4 << 20
	// firstProbeInterval is how often an engine is asked until it has answered once: the router often starts with it.
	firstProbeInterval = 100 * time.Millisecond
	firstProbes        = 50
)

// proxy is a reverse proxy of the configuration whose policy is ours.
type proxy struct {
	selection *Selection
	handler   *reverseproxy.Handler
	front     *Handler // the inferrail handler before it; nil if there is none
}

// findProxies looks through the HTTP app for the proxies that use our selection policy, so that their engines are known
// before the first request.
func (a *App) findProxies() []proxy {
	var found []proxy
	for _, server := range a.httpServers() {
		found = walkRoutes(server.Routes, nil, found)
	}
	return found
}

// walkRoutes adds the proxies of routes to found; front is the inferrail handler that requests have passed.
func walkRoutes(routes caddyhttp.RouteList, front *Handler, found []proxy) []proxy {
	for _, route := range routes {
		for _, h := range route.Handlers {
			switch h := h.(type) {
			case *Handler:
				front = h
			case *caddyhttp.Subroute:
				found = walkRoutes(h.Routes, front, found)
			case *reverseproxy.Handler:
				if h.LoadBalancing == nil {
					continue
				}
				if s, ok := h.LoadBalancing.SelectionPolicy.(*Selection); ok {
					found = append(found, proxy{s, h, front})
				}
			}
		}
	}
	return found
}

// adopt makes the engines of the proxies known and checks what only both sides together can tell.
func (a *App) adopt(proxies []proxy) {
	for _, p := range proxies {
		if p.front == nil {
			a.logger.Warn("reverse_proxy uses lb_policy inferrail without the inferrail handler before it; prompts are not seen",
				zap.String("fleet", p.selection.Fleet))
		} else {
			p.front.adopt(p.selection)
		}
		t, ok := p.handler.Transport.(*Transport)
		if !ok {
			a.logger.Warn("reverse_proxy uses lb_policy inferrail without transport inferrail; ends of requests are not seen",
				zap.String("fleet", p.selection.Fleet))
			continue
		}
		if retries := p.handler.LoadBalancing.Retries; retries+1 != t.MaxAttempts {
			a.logger.Warn("lb_retries should be one less than max_attempts of transport inferrail",
				zap.Int("lb_retries", retries), zap.Int("max_attempts", t.MaxAttempts))
		}
		p.selection.prober.Store(t)
		p.selection.remember(p.handler.Upstreams)
		for _, u := range p.handler.Upstreams {
			p.selection.replica(u.Dial)
		}
	}
}

// watch keeps an eye on a replica that a selection has come to know.
func (a *App) watch(s *Selection, r *replica) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, known := a.watched[r]
	a.watched[r] = s
	if a.started && !known {
		a.probeLocked(r)
	}
}

func (a *App) probeLocked(r *replica) {
	ctx := a.probing
	a.probes.Go(func() { a.probeLoop(ctx, r) })
}

func (a *App) probeLoop(ctx context.Context, r *replica) {
	for n := 0; ; n++ {
		a.probe(ctx, r)
		wait := time.Duration(a.ProbeInterval)
		if _, _, known := r.counters.Report(now()); !known && n < firstProbes {
			wait = min(wait, firstProbeInterval)
		}
		if !sleep(ctx, wait) {
			return
		}
	}
}

// probe asks an engine for its metrics page and model cards.
func (a *App) probe(ctx context.Context, r *replica) {
	t := a.transport(r)
	if t == nil {
		return // the app has yet to find the proxy
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	var report fleet.Report
	err := r.get(ctx, t, "/metrics", func(body io.Reader) (err error) {
		report, err = fleet.ParseMetrics(body, maxMetricsBytes)
		return err
	})
	if ctx.Err() == context.Canceled {
		return
	}
	if err != nil {
		if r.counters.ApplyFailure() {
			a.logger.Warn("reading an engine's metrics", zap.String("replica", r.key.address), zap.Error(err))
		}
		return
	}
	a.apply(r, r.counters.ApplyReport(now(), report))
	_ = r.get(ctx, t, "/v1/models", func(body io.Reader) error { // the cards of before stay
		raw, err := io.ReadAll(io.LimitReader(body, fleet.MaxModelsBytes+1))
		if err != nil {
			return err
		}
		cards, err := fleet.ParseModels(raw)
		if err == nil {
			r.mu.Lock()
			r.cards = cards
			r.mu.Unlock()
		}
		return err
	})
	a.check(r, report)
}

// check warns, once for each engine and configuration, of what cannot be right.
func (a *App) check(r *replica, report fleet.Report) {
	a.mu.Lock()
	known := a.checked[r]
	a.checked[r] = true
	a.mu.Unlock()
	if known {
		return
	}
	log := a.logger.With(zap.String("replica", r.key.address))
	served := false
	for _, m := range a.Models {
		if !r.serves(m) {
			continue
		}
		served = true
		if report.BlockSize != 0 && report.BlockSize != m.BlockSize {
			log.Warn("the engine's block size differs from the model's block_size; predictions will be wrong",
				zap.String("model", m.Name), zap.Int("engine", report.BlockSize), zap.Int("configured", m.BlockSize))
		}
		if report.UsableBlocks != 0 && m.KVCapacityBlocks != 0 && report.UsableBlocks != m.KVCapacityBlocks {
			log.Warn("the engine's KV cache differs from the model's kv_capacity_blocks; predictions will be wrong",
				zap.String("model", m.Name), zap.Int("engine", report.UsableBlocks), zap.Int("configured", m.KVCapacityBlocks))
		}
	}
	if !served {
		log.Warn("the engine serves none of the configured models and gets no requests", zap.Strings("serves", r.models()))
	}
}

// apply takes in what a report changed.
func (a *App) apply(r *replica, c fleet.Change) {
	if c.Recovered {
		a.logger.Info("engine's metrics are readable again", zap.String("replica", r.key.address))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Restarted {
		a.logger.Info("engine has restarted; its cache is taken as empty", zap.String("replica", r.key.address))
		if r.row != nil {
			r.row.Reset()
		}
		a.metrics.indexResets.WithLabelValues(r.key.address).Inc()
	}
	if !c.CapacityChanged {
		return
	}
	r.capacity.reported = c.UsableBlocks
	r.resizeLocked()
}

// transport is how this configuration reaches the replica's engine; nil before the app has found the proxy.
func (a *App) transport(r *replica) *Transport {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.watched[r].prober.Load()
}

// get asks the engine for a path and reads a 200's body.
func (r *replica) get(ctx context.Context, t *Transport, path string, read func(io.Reader) error) error {
	address, err := caddy.ParseNetworkAddress(r.key.address)
	if err != nil {
		return fmt.Errorf("parsing address %q: %w", r.key.address, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address.JoinHostPort(0)+path, nil)
	if err != nil {
		return err
	}
	req.URL.Scheme = ""
	t.http.SetScheme(req)
	res, err := t.http.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it has been read
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return read(res.Body)
}
