package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/inferrail/inferrail/index"
	"github.com/inferrail/inferrail/policies"
)

func init() { caddy.RegisterModule(new(Selection)) }

// Response headers that say how a request was routed.
const (
	headerReplica      = "X-Inferrail-Replica"
	headerPolicy       = "X-Inferrail-Policy"
	headerPromptTokens = "X-Inferrail-Prompt-Tokens"
	headerCachedTokens = "X-Inferrail-Cached-Tokens"
	headerRequestID    = "X-Request-Id"
)

// ownHeaders are those that the router sets on every response; a client sees one value of each.
var ownHeaders = []string{
	headerReplica, headerPolicy, headerPromptTokens, headerCachedTokens, headerReason, headerRequestID,
}

// Selection is a selection policy of `reverse_proxy` that lets a routing policy choose the replica: one that is available,
// preferably one that the request has not tried. It needs the `inferrail` handler in front of the proxy to know the prompt
// and the `inferrail` transport in the proxy to know when an attempt ends; without the handler it chooses the upstream
// with the fewest requests.
type Selection struct {
	// The routing policy: `round_robin`, `least_request`, `cost_model`. Default: cost_model.
	PolicyRaw json.RawMessage `json:"routing,omitempty" caddy:"namespace=inferrail.policies inline_key=name"`

	// The name of the fleet that the upstreams belong to. Proxies of one fleet share the index and the replicas' counters,
	// over reloads too. Default: "default".
	Fleet string `json:"fleet,omitempty"`

	// Start of the policies' source of chance: equal seeds and equal traffic give equal choices. At most 2^53-1, as large as
	// every JSON reader keeps exact. Default: differs with each start of the process.
	Seed uint64 `json:"seed,omitempty"`

	policy     PolicyModule
	policyName string
	settings   string
	app        *App
	logger     *zap.Logger

	// prober is the proxy's transport, which the app finds when it starts; nil before.
	prober atomic.Pointer[Transport]

	provisioned bool

	mu       sync.Mutex
	users    int
	fleet    *fleetState             // nil while users is 0, as are the maps; fixed while it is not
	policies map[string]*policyState // by model; fixed while users is not 0
	replicas map[string]*replica     // by address; one reference each
	pool     reverseproxy.UpstreamPool
}

// maxSeed is the largest configurable seed: larger integers change in a JSON reader that takes numbers as floats, such as
// Caddy's adapter.
const maxSeed = 1<<53 - 1

// processSeed makes the chance of each process its own, so that several routers do not move in step.
var processSeed = rand.Uint64()

// CaddyModule returns the Caddy module information.
func (*Selection) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.inferrail",
		New: func() caddy.Module { return new(Selection) },
	}
}

// Provision loads the routing policy and joins the fleet.
func (s *Selection) Provision(ctx caddy.Context) error {
	s.logger = ctx.Logger()
	if s.Fleet == "" {
		s.Fleet = defaultFleet
	}
	if s.Seed > maxSeed {
		return fmt.Errorf("seed: want at most 2^53-1, got %d", s.Seed)
	}
	if s.PolicyRaw == nil {
		s.PolicyRaw = caddyconfig.JSONModuleObject(new(CostModel), "name", "cost_model", nil)
	}
	s.settings = fmt.Sprintf("%d %s", s.Seed, s.PolicyRaw) // before LoadModule, which clears it
	if s.Seed == 0 {
		s.Seed = processSeed
	}
	mod, err := ctx.LoadModule(s, "PolicyRaw")
	if err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	if s.policy, s.policyName, err = policyOf(mod); err != nil {
		return fmt.Errorf("routing: %w", err)
	}
	if s.app, err = inferrailApp(ctx); err != nil {
		return err
	}
	if err := s.hold(); err != nil {
		return err
	}
	s.provisioned = true
	s.app.addSelection(s)
	return nil
}

// Cleanup ends the configuration's own hold; the last request under way lets go of the rest.
func (s *Selection) Cleanup() error {
	if s.provisioned {
		s.provisioned = false
		s.letGo()
	}
	return nil
}

// hold joins the fleet and the policies' states, or counts one more user of them. The configuration is one user from
// Provision to Cleanup, each request another, so that a request can end after its configuration, even begin after it.
func (s *Selection) hold() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users == 0 {
		if err := s.joinLocked(); err != nil {
			s.leaveLocked()
			return err
		}
	}
	s.users++
	return nil
}

// letGo is the counterpart of hold.
func (s *Selection) letGo() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 {
		s.leaveLocked()
	}
}

func (s *Selection) joinLocked() (err error) {
	s.policies, s.replicas = make(map[string]*policyState), make(map[string]*replica)
	if s.fleet, err = acquireFleet(s.Fleet); err != nil {
		return err
	}
	for _, m := range s.app.Models {
		if s.policies[m.Name], err = s.joinPolicy(m); err != nil {
			delete(s.policies, m.Name)
			return fmt.Errorf("routing: building policy %q for model %q: %w", s.policyName, m.Name, err)
		}
	}
	return nil
}

func (s *Selection) joinPolicy(m *Model) (*policyState, error) {
	cost, err := json.Marshal(m.cost)
	if err != nil {
		return nil, err
	}
	key := policyKey{s.Fleet, m.Name, s.settings + string(cost)}
	return acquirePolicy(key, func() (*policyState, error) {
		p, err := s.policy.Policy(m.cost, s.Seed)
		if err != nil {
			return nil, err
		}
		cost, err := policies.NewCostModel(m.cost, s.Seed)
		if err != nil {
			return nil, err
		}
		return &policyState{policy: p, cost: cost}, nil
	})
}

func (s *Selection) leaveLocked() {
	for _, r := range s.replicas {
		r.release()
	}
	for _, p := range s.policies {
		p.release()
	}
	if s.fleet != nil {
		releaseFleet(s.fleet)
	}
	s.replicas, s.policies, s.fleet = nil, nil, nil
}

// replica returns the replica at address; the caller must hold the selection.
func (s *Selection) replica(address string) *replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.replicas[address]
	if !ok {
		r = acquireReplica(s.fleet, address, s.app.metrics)
		s.replicas[address] = r
		s.app.watch(s, r)
	}
	return r
}

// Select chooses an upstream for the request, takes a lease on the replica and tells the index. It returns nil when no
// upstream is available.
func (s *Selection) Select(pool reverseproxy.UpstreamPool, r *http.Request, w http.ResponseWriter) *reverseproxy.Upstream {
	s.remember(pool)
	req := requestFrom(r.Context())
	if req == nil {
		return leastLoaded(pool)
	}
	if req.holding != s {
		if err := s.hold(); err != nil {
			s.logger.Error("joining the fleet", zap.Error(err))
			return nil
		}
		req.release()
		req.holding = s
	}
	req.end()
	offered := s.candidates(pool, req)
	if len(offered) == 0 {
		return nil
	}
	if req.attempts > 0 && req.hasTried(offered[0].Dial) && !sleep(r.Context(), backoff(req.attempts)) {
		return nil
	}
	start := time.Now()
	a, upstream := s.place(offered, req)
	s.app.metrics.decided(req, a, time.Since(start))

	h := w.Header()
	h.Set(headerReplica, a.replica.key.address)
	h.Set(headerPolicy, a.policy)
	if req.promptTokens > 0 && req.prompt != nil {
		h.Set(headerPromptTokens, strconv.Itoa(req.promptTokens))
		h.Set(headerCachedTokens, strconv.Itoa(a.predicted))
	}
	return upstream
}

// remember keeps the newest pool for the admin routes.
func (s *Selection) remember(pool reverseproxy.UpstreamPool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = pool
}

func (s *Selection) lastPool() reverseproxy.UpstreamPool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pool
}

// candidates are the available upstreams that serve the model and that the request has not tried, else those that it has.
func (s *Selection) candidates(pool reverseproxy.UpstreamPool, req *request) []*reverseproxy.Upstream {
	fresh := make([]*reverseproxy.Upstream, 0, len(pool))
	var tried []*reverseproxy.Upstream
	for _, u := range pool {
		switch {
		case !u.Available(), !s.replica(u.Dial).serves(req.model):
		case req.hasTried(u.Dial):
			tried = append(tried, u)
		default:
			fresh = append(fresh, u)
		}
	}
	if len(fresh) > 0 {
		return fresh
	}
	return tried
}

// scratch holds the slices of one decision.
type scratch struct {
	replicas []*replica
	rows     []*index.Replica
	cached   []int
	in       policies.Input
	decision policies.Decision
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

// place decides and begins the attempt, as one step under the fleet's lock.
func (s *Selection) place(offered []*reverseproxy.Upstream, req *request) (*attempt, *reverseproxy.Upstream) {
	sc := scratchPool.Get().(*scratch)
	defer scratchPool.Put(sc)
	s.gather(sc, offered, req)
	policy := s.policies[req.model.Name]

	s.fleet.mu.Lock()
	defer s.fleet.mu.Unlock()
	s.price(sc, req)
	policy.policy.Decide(&sc.in, &sc.decision)
	policy.policy.Commit(&sc.in, &sc.decision)
	winner := sc.decision.Winner
	r := sc.replicas[winner]
	a := &attempt{replica: r, policy: s.policyName, predicted: -1}
	cached := 0
	if req.prompt != nil {
		cached = sc.cached[winner]
		a.predicted = cached
		a.placement = sc.rows[winner].Record(req.prompt)
	}
	a.lease = r.counters.Acquire(sc.in.Now, req.promptTokens, policy.cost.Prefill(req.promptTokens-cached, cached))
	s.app.metrics.estimated(req, a, &sc.decision)
	req.begin(a)
	return a, offered[winner]
}

// gather collects the candidates' replicas and rows.
func (s *Selection) gather(sc *scratch, offered []*reverseproxy.Upstream, req *request) {
	sc.replicas, sc.rows = sc.replicas[:0], sc.rows[:0]
	for _, u := range offered {
		r := s.replica(u.Dial)
		sc.replicas = append(sc.replicas, r)
		if req.prompt != nil {
			sc.rows = append(sc.rows, r.indexRow(req.model))
		}
	}
}

// price fills in the policy's input: what each candidate holds of the prompt and what waits there.
func (s *Selection) price(sc *scratch, req *request) {
	sc.in.Now, sc.in.PromptTokens, sc.in.Hashes = now(), req.promptTokens, nil
	sc.cached = sc.cached[:0]
	if req.prompt != nil {
		sc.in.Hashes = req.prompt.Hashes
		sc.cached = s.fleet.index.CachedTokens(req.prompt, sc.rows, sc.cached)
	}
	sc.in.Candidates = sc.in.Candidates[:0]
	for i, r := range sc.replicas {
		load := r.counters.Load(sc.in.Now)
		c := policies.Candidate{Name: r.key.address, InFlight: load.InFlight, Queued: load.QueuedPrefill}
		if req.prompt != nil {
			c.CachedTokens = sc.cached[i]
		}
		sc.in.Candidates = append(sc.in.Candidates, c)
	}
}

// leastLoaded serves proxies that have no `inferrail` handler in front.
func leastLoaded(pool reverseproxy.UpstreamPool) *reverseproxy.Upstream {
	var best *reverseproxy.Upstream
	ties := 0
	for _, u := range pool {
		if !u.Available() {
			continue
		}
		switch {
		case best == nil || u.Host.NumRequests() < best.Host.NumRequests():
			best, ties = u, 1
		case u.Host.NumRequests() == best.Host.NumRequests():
			ties++
			if rand.IntN(ties) == 0 {
				best = u
			}
		}
	}
	return best
}

// backoff is the wait before a request meets a replica again that it has already tried: 25 ms, doubling up to 400 ms.
func backoff(attempts int) time.Duration {
	return 25 * time.Millisecond << min(max(attempts-1, 0), 4)
}

// sleep waits unless the request ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// UnmarshalCaddyfile sets up the selection policy from Caddyfile tokens. Syntax:
//
//	lb_policy inferrail {
//	    policy <name> [{
//	        <options of the policy>
//	    }]
//	    fleet  <name>
//	    seed   <number>
//	}
//
// or, where only the policy is to be set:
//
//	lb_policy inferrail <policy> [{
//	    <options of the policy>
//	}]
func (s *Selection) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume selection policy name
	if d.NextArg() {
		if err := s.unmarshalPolicy(d); err != nil {
			return err
		}
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "policy":
			if s.PolicyRaw != nil {
				return d.Err("policy already specified")
			}
			if !d.NextArg() {
				return d.ArgErr()
			}
			if err := s.unmarshalPolicy(d); err != nil {
				return err
			}
		case "fleet":
			if s.Fleet != "" {
				return d.Err("fleet already specified")
			}
			if !d.AllArgs(&s.Fleet) {
				return d.ArgErr()
			}
		case "seed":
			if err := once(d, &s.Seed, seedArg); err != nil {
				return err
			}
		default:
			return d.Errf("unrecognized subdirective %q", d.Val())
		}
	}
	return nil
}

// seedArg reads the one argument of the current subdirective as a seed.
func seedArg(d *caddyfile.Dispenser) (uint64, error) {
	name := d.Val()
	if !d.NextArg() {
		return 0, d.ArgErr()
	}
	seed, err := strconv.ParseUint(d.Val(), 10, 64)
	if err != nil || seed > maxSeed {
		return 0, d.Errf("%s: want an integer of at most 2^53-1, got %q", name, d.Val())
	}
	if d.NextArg() {
		return 0, d.ArgErr()
	}
	return seed, nil
}

// unmarshalPolicy reads the policy whose name is the current token.
func (s *Selection) unmarshalPolicy(d *caddyfile.Dispenser) error {
	name := d.Val()
	u, err := unmarshalGuest(d, "inferrail.policies", name)
	if err != nil {
		return err
	}
	if _, _, err := policyOf(u); err != nil {
		return d.WrapErr(err)
	}
	s.PolicyRaw = caddyconfig.JSONModuleObject(u, "name", name, nil)
	return nil
}

// Interface guards
var (
	_ reverseproxy.Selector = (*Selection)(nil)
	_ caddy.Provisioner     = (*Selection)(nil)
	_ caddy.CleanerUpper    = (*Selection)(nil)
	_ caddyfile.Unmarshaler = (*Selection)(nil)
)
