package caddymodule

import (
	"fmt"
	"math"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/inferrail/inferrail/policies"
)

func init() {
	caddy.RegisterModule(new(RoundRobin))
	caddy.RegisterModule(new(LeastRequest))
	caddy.RegisterModule(new(CostModel))
}

// PolicyModule is what a guest module of `inferrail.policies` must be: the settings of a routing policy, from which one
// policy is built for each model.
type PolicyModule interface {
	// Policy builds the policy for a model whose engines have that cost model. The seed starts its source of chance.
	Policy(cost policies.CostModelConfig, seed uint64) (policies.Policy, error)
}

// RoundRobin sends each request to the next replica in turn.
type RoundRobin struct{}

// CaddyModule returns the Caddy module information.
func (*RoundRobin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "inferrail.policies.round_robin", New: func() caddy.Module { return new(RoundRobin) }}
}

// Policy builds the policy.
func (*RoundRobin) Policy(policies.CostModelConfig, uint64) (policies.Policy, error) {
	return policies.NewRoundRobin(), nil
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens. Syntax:
//
//	policy round_robin
func (*RoundRobin) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return noOptions(d) }

// LeastRequest sends each request to the replica with the fewest requests in flight; ties are broken by chance.
type LeastRequest struct{}

// CaddyModule returns the Caddy module information.
func (*LeastRequest) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "inferrail.policies.least_request", New: func() caddy.Module { return new(LeastRequest) }}
}

// Policy builds the policy.
func (*LeastRequest) Policy(_ policies.CostModelConfig, seed uint64) (policies.Policy, error) {
	return policies.NewLeastRequest(seed), nil
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens. Syntax:
//
//	policy least_request
func (*LeastRequest) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return noOptions(d) }

// CostModel sends each request to the replica with the lowest estimated time to first token: the prefill queued there
// plus the time to compute the part of the prompt that is not in its KV cache. Ties go to fewer requests in flight, then
// to chance. The engines' speed is a model's `cost_model`.
type CostModel struct {
	// How far above its equal share of the requests in flight a replica may go before it is set aside: no replica gets
	// more than ⌈(1 + epsilon) · (in flight + 1) / replicas⌉. Small values cost cache hits. Default: 1.0. Not negative.
	Epsilon *float64 `json:"epsilon,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*CostModel) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "inferrail.policies.cost_model", New: func() caddy.Module { return new(CostModel) }}
}

// Validate checks the settings.
func (c *CostModel) Validate() error {
	_, err := c.Policy(policies.DefaultCostModelConfig(), 0)
	return err
}

// Policy builds the policy.
func (c *CostModel) Policy(cost policies.CostModelConfig, seed uint64) (policies.Policy, error) {
	if c.Epsilon != nil {
		cost.Epsilon = *c.Epsilon
	}
	return policies.NewCostModel(cost, seed)
}

// UnmarshalCaddyfile sets up the policy from Caddyfile tokens. Syntax:
//
//	policy cost_model {
//	    epsilon <number>
//	}
func (c *CostModel) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume policy name
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		switch d.Val() {
		case "epsilon":
			if c.Epsilon != nil {
				return d.Err("epsilon already specified")
			}
			v, err := floatArg(d)
			if err != nil {
				return err
			}
			c.Epsilon = &v
		default:
			return d.Errf("unrecognized subdirective %q", d.Val())
		}
	}
	return nil
}

// noOptions reads a module that has neither arguments nor a block.
func noOptions(d *caddyfile.Dispenser) error {
	d.Next() // consume module name
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unrecognized subdirective %q", d.Val())
	}
	return nil
}

// floatArg reads the one argument of the current subdirective as a number.
func floatArg(d *caddyfile.Dispenser) (float64, error) {
	name := d.Val()
	if !d.NextArg() {
		return 0, d.ArgErr()
	}
	v, err := strconv.ParseFloat(d.Val(), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) { // JSON has no word for these
		return 0, d.Errf("%s: want a number, got %q", name, d.Val())
	}
	if d.NextArg() {
		return 0, d.ArgErr()
	}
	return v, nil
}

// intArg reads the one argument of the current subdirective as an integer.
func intArg(d *caddyfile.Dispenser) (int, error) {
	name := d.Val()
	if !d.NextArg() {
		return 0, d.ArgErr()
	}
	v, err := strconv.Atoi(d.Val())
	if err != nil {
		return 0, d.Errf("%s: want an integer, got %q", name, d.Val())
	}
	if d.NextArg() {
		return 0, d.ArgErr()
	}
	return v, nil
}

// durationArg reads the one argument of the current subdirective as a duration.
func durationArg(d *caddyfile.Dispenser) (caddy.Duration, error) {
	name := d.Val()
	if !d.NextArg() {
		return 0, d.ArgErr()
	}
	v, err := caddy.ParseDuration(d.Val())
	if err != nil {
		return 0, d.Errf("%s: want a duration, got %q", name, d.Val())
	}
	if d.NextArg() {
		return 0, d.ArgErr()
	}
	return caddy.Duration(v), nil
}

// policyName is the last label of a policy module's id.
func policyName(m caddy.Module) string { return m.CaddyModule().ID.Name() }

func policyOf(mod any) (PolicyModule, string, error) {
	p, ok := mod.(PolicyModule)
	if !ok {
		return nil, "", fmt.Errorf("module %T is not a routing policy", mod)
	}
	m, ok := mod.(caddy.Module)
	if !ok {
		return nil, "", fmt.Errorf("module %T has no module information", mod)
	}
	return p, policyName(m), nil
}

// Interface guards
var (
	_ PolicyModule          = (*RoundRobin)(nil)
	_ PolicyModule          = (*LeastRequest)(nil)
	_ PolicyModule          = (*CostModel)(nil)
	_ caddy.Validator       = (*CostModel)(nil)
	_ caddyfile.Unmarshaler = (*RoundRobin)(nil)
	_ caddyfile.Unmarshaler = (*LeastRequest)(nil)
	_ caddyfile.Unmarshaler = (*CostModel)(nil)
)
