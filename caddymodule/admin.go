package caddymodule

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/inferrail/inferrail/internal/openai"
)

func init() { caddy.RegisterModule(new(Admin)) }

// Admin adds routes to Caddy's admin API:
//
//	POST /inferrail/explain/v1/chat/completions   what the router would do with this request, without sending it
//	POST /inferrail/explain/v1/completions        (?fleet=NAME where there are several)
//	GET  /inferrail/replicas                      each replica's availability, load, index and last report
//
// Prompts never appear in an answer.
type Admin struct{}

const (
	adminPrefix   = "/inferrail/"
	explainPrefix = adminPrefix + "explain"
)

// CaddyModule returns the Caddy module information.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.inferrail", New: func() caddy.Module { return new(Admin) }}
}

// Routes returns the admin routes.
func (a *Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{{Pattern: adminPrefix, Handler: caddy.AdminHandlerFunc(a.serve)}}
}

func (a *Admin) serve(w http.ResponseWriter, r *http.Request) error {
	app := runningApp()
	if app == nil {
		return adminError(http.StatusServiceUnavailable, "the configuration in effect has no inferrail app")
	}
	switch path := r.URL.Path; {
	case path == adminPrefix+"replicas":
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			return adminError(http.StatusMethodNotAllowed, "method %s is not allowed; allowed: GET", r.Method)
		}
		writeJSON(w, http.StatusOK, app.describeReplicas())
		return nil
	case path == explainPrefix+"/v1/chat/completions", path == explainPrefix+"/v1/completions":
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			return adminError(http.StatusMethodNotAllowed, "method %s is not allowed; allowed: POST", r.Method)
		}
		return app.explain(w, r, strings.TrimPrefix(path, explainPrefix))
	}
	return adminError(http.StatusNotFound, "there is no %s; there are %sreplicas, %s/v1/chat/completions and %s/v1/completions",
		r.URL.Path, adminPrefix, explainPrefix, explainPrefix)
}

func adminError(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// explanation is the answer of the explain routes.
type explanation struct {
	Fleet        string               `json:"fleet"`
	Policy       string               `json:"policy"`
	Model        string               `json:"model"`
	PromptTokens int                  `json:"prompt_tokens"`
	Blocks       int                  `json:"blocks"`
	Prediction   string               `json:"prediction"` // ok, or why there is none
	Winner       string               `json:"winner,omitempty"`
	DecidedBy    string               `json:"decided_by,omitempty"`
	Replicas     []explainedCandidate `json:"replicas"`
}

type explainedCandidate struct {
	Replica          string             `json:"replica"`
	Offered          bool               `json:"offered"`
	WhyNot           string             `json:"why_not,omitempty"`
	InFlight         int                `json:"in_flight"`
	CachedTokens     *int               `json:"cached_tokens,omitempty"`
	QueuedSecs       float64            `json:"queued_secs"`
	IndexedBlocks    int                `json:"indexed_blocks"`
	IndexBlocksLimit int                `json:"index_capacity_blocks"`
	Guard            string             `json:"guard,omitempty"`
	Estimate         *explainedEstimate `json:"estimate,omitempty"`
}

type explainedEstimate struct {
	QueueSecs   float64 `json:"queue_secs"`
	PrefillSecs float64 `json:"prefill_secs"`
	TTFTSecs    float64 `json:"ttft_secs"`
}

// explain answers what the policy would do with the request in the body. It changes nothing.
func (a *App) explain(w http.ResponseWriter, r *http.Request, path string) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, defaultMaxBodySize+1))
	switch {
	case err != nil:
		return adminError(http.StatusBadRequest, "reading the request: %w", err)
	case len(body) > defaultMaxBodySize:
		return adminError(http.StatusRequestEntityTooLarge, "the request is larger than %d bytes", defaultMaxBodySize)
	}
	s, err := a.selection(r.URL.Query().Get("fleet"))
	if err != nil {
		return err
	}
	fields, err := openai.Scan(body)
	if err != nil {
		return adminError(http.StatusBadRequest, "reading the request: %w", err)
	}
	m, ok := a.model(fields.Model)
	switch {
	case fields.ModelInvalid:
		return adminError(http.StatusBadRequest, "model must be a string")
	case !ok && fields.Model == "":
		return adminError(http.StatusBadRequest, "the request names no model, and there are several")
	case !ok:
		return adminError(http.StatusNotFound, "there is no model %q", clip(fields.Model))
	}
	req := &request{model: m, fields: fields, body: body, arrival: now(), promptTokens: len(body) / bytesPerToken}
	prompt, result := a.tokens(r.Context(), m, path, body)
	if result == resultOK {
		req.prompt, req.promptTokens = m.prompt(prompt.Tokens, fields.CacheSalt), len(prompt.Tokens)
	}
	e, err := s.explain(req)
	if err != nil {
		return err
	}
	e.Prediction = result
	writeJSON(w, http.StatusOK, e)
	return nil
}

// selection finds the proxy to explain; its fleet must be named where there are several.
func (a *App) selection(fleet string) (*Selection, error) {
	all := a.proxies()
	var found []*Selection
	var names []string
	for _, s := range all {
		names = append(names, s.Fleet)
		if fleet == "" || s.Fleet == fleet {
			found = append(found, s)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	switch {
	case len(all) == 0:
		return nil, adminError(http.StatusNotFound, "no reverse_proxy of this configuration uses lb_policy inferrail")
	case len(found) == 0:
		return nil, adminError(http.StatusNotFound, "there is no fleet %q; there are %q", fleet, names)
	case fleet == "" && len(names) > 1:
		return nil, adminError(http.StatusBadRequest, "there are several fleets; name one of %q with ?fleet=", names)
	}
	return found[0], nil
}

// explain decides as Select would, and leaves everything as it was.
func (s *Selection) explain(req *request) (*explanation, error) {
	if err := s.hold(); err != nil {
		return nil, adminError(http.StatusInternalServerError, "joining the fleet: %w", err)
	}
	defer s.letGo()
	pool := s.lastPool()
	offered := s.candidates(pool, req)
	sc := new(scratch)
	s.gather(sc, offered, req)
	policy := s.policies[req.model.Name]

	s.fleet.mu.Lock()
	s.price(sc, req)
	if len(offered) > 0 {
		policy.policy.Decide(&sc.in, &sc.decision)
	}
	s.fleet.mu.Unlock()

	e := &explanation{
		Fleet: s.Fleet, Policy: s.policyName, Model: req.model.Name, PromptTokens: req.promptTokens,
		Replicas: []explainedCandidate{},
	}
	if req.prompt != nil {
		e.Blocks = len(req.prompt.Hashes)
	}
	if len(offered) > 0 {
		e.Winner, e.DecidedBy = offered[sc.decision.Winner].Dial, sc.decision.DecidedBy
	}
	for i, u := range offered {
		e.Replicas = append(e.Replicas, s.explainCandidate(sc, i, u))
	}
	for _, u := range pool {
		r := s.replica(u.Dial)
		why := whyNot(u)
		if u.Available() {
			if r.serves(req.model) {
				continue
			}
			why = "serves other models"
		}
		load := r.counters.Load(now())
		e.Replicas = append(e.Replicas, explainedCandidate{
			Replica: u.Dial, WhyNot: why, InFlight: load.InFlight, QueuedSecs: load.QueuedPrefill.Seconds(),
		})
	}
	return e, nil
}

func (s *Selection) explainCandidate(sc *scratch, i int, u *reverseproxy.Upstream) explainedCandidate {
	c := sc.in.Candidates[i]
	out := explainedCandidate{Replica: u.Dial, Offered: true, InFlight: c.InFlight, QueuedSecs: c.Queued.Seconds()}
	if len(sc.cached) > 0 {
		out.CachedTokens = &sc.cached[i]
		stats := sc.rows[i].Stats()
		out.IndexedBlocks, out.IndexBlocksLimit = stats.Blocks, stats.Capacity
	}
	if i < len(sc.decision.Estimates) {
		e := sc.decision.Estimates[i]
		out.Guard = e.Guard
		out.Estimate = &explainedEstimate{e.Queue.Seconds(), e.Prefill.Seconds(), e.TTFT.Seconds()}
	}
	return out
}

func whyNot(u *reverseproxy.Upstream) string {
	if u.Healthy() {
		return "full"
	}
	return "unhealthy"
}

// describedReplica is an entry of /inferrail/replicas.
type describedReplica struct {
	Fleet            string          `json:"fleet"`
	Replica          string          `json:"replica"`
	Available        bool            `json:"available"`
	WhyNot           string          `json:"why_not,omitempty"`
	InFlight         int             `json:"in_flight"`
	Waiting          int             `json:"awaiting_response"`
	AwaitingToken    int             `json:"awaiting_first_byte"`
	PromptTokens     int             `json:"in_flight_prompt_tokens"`
	QueuedSecs       float64         `json:"queued_secs"`
	IndexedBlocks    int             `json:"indexed_blocks"`
	IndexBlocksLimit int             `json:"index_capacity_blocks"`
	Models           []string        `json:"models,omitempty"`
	Report           *describedState `json:"report,omitempty"`
}

type describedState struct {
	AgeSecs            float64 `json:"age_secs"`
	Running            int     `json:"running"`
	Waiting            int     `json:"waiting"`
	KVUsage            float64 `json:"kv_usage"`
	KVUsageName        string  `json:"kv_usage_metric"`
	PrefixCacheQueries int64   `json:"prefix_cache_queries"`
	PrefixCacheHits    int64   `json:"prefix_cache_hits"`
	BlockSize          int     `json:"block_size"`
	NumGPUBlocks       int     `json:"num_gpu_blocks"`
}

// describeReplicas lists the replicas of the configuration's proxies, by fleet and address.
func (a *App) describeReplicas() []describedReplica {
	out := []describedReplica{}
	at := now()
	seen := make(map[replicaKey]bool)
	for _, s := range a.proxies() {
		if s.hold() != nil {
			continue
		}
		for _, u := range s.lastPool() {
			r := s.replica(u.Dial)
			if seen[r.key] { // of another proxy of the fleet
				continue
			}
			seen[r.key] = true
			load := r.counters.Load(at)
			d := describedReplica{
				Fleet: s.Fleet, Replica: u.Dial, Available: u.Available(), InFlight: load.InFlight, Waiting: load.Waiting,
				AwaitingToken: load.AwaitingFirstByte, PromptTokens: load.PromptTokens, QueuedSecs: load.QueuedPrefill.Seconds(),
			}
			if !d.Available {
				d.WhyNot = whyNot(u)
			}
			if stats, ok := r.indexStats(); ok {
				d.IndexedBlocks, d.IndexBlocksLimit = stats.Blocks, stats.Capacity
			}
			d.Models = r.models()
			if rep, age, ok := r.counters.Report(at); ok {
				d.Report = &describedState{
					age.Seconds(), rep.Running, rep.Waiting, rep.KVUsage, rep.KVUsageName, rep.PrefixCacheQueries,
					rep.PrefixCacheHits, rep.BlockSize, rep.NumGPUBlocks,
				}
			}
			out = append(out, d)
		}
		s.letGo()
	}
	return out
}

// proxies are the selections of this configuration.
func (a *App) proxies() []*Selection {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.selections)
}

// replicas are those that this configuration watches.
func (a *App) replicas() []*replica {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.watched))
}

// Interface guards
var (
	_ caddy.AdminRouter = (*Admin)(nil)
)
