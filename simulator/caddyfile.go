package simulator

import (
	"strconv"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() {
	httpcaddyfile.RegisterHandlerDirective("vllm_simulator", parseCaddyfile)
	httpcaddyfile.RegisterDirectiveOrder("vllm_simulator", httpcaddyfile.Before, "respond")
}

func parseCaddyfile(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	s := new(Simulator)
	return s, s.UnmarshalCaddyfile(h.Dispenser)
}

// UnmarshalCaddyfile sets up the simulator from Caddyfile tokens. Syntax:
//
//	vllm_simulator [<matcher>] [<model>] {
//	    model                        <path or name>
//	    served_model_name            <names...>
//	    instance                     <name>
//	    tokenizer                    <name> [<args...>] {
//	        ...
//	    }
//	    block_size                   <tokens>
//	    num_gpu_blocks_override      <blocks>
//	    max_num_seqs                 <sequences>
//	    max_num_batched_tokens       <tokens>
//	    max_model_len                <tokens>
//	    enable_prefix_caching        [<true|false>]
//	    no_enable_prefix_caching
//	    enable_prompt_tokens_details [<true|false>]
//	    scheduling_policy            fcfs|priority
//	    prefill_token_us             <microseconds>
//	    prefill_pair_ns              <nanoseconds>
//	    prefill_fixed_ms             <milliseconds>
//	    decode_token_ms              <milliseconds>
//	    decode_seq_us                <microseconds>
//	    zero_latency                 [<true|false>]
//	}
//
// A model whose name begins with a slash is written in the block, where it is not taken for a path matcher.
func (s *Simulator) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume directive name
	seen := make(map[string]bool)
	if d.NextArg() {
		s.Model = d.Val()
		seen["model"] = true
		if d.NextArg() {
			return d.ArgErr()
		}
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		known := name
		if name == "no_enable_prefix_caching" {
			known = "enable_prefix_caching"
		}
		if seen[known] {
			return d.Errf("%s is already specified", name)
		}
		seen[known] = true
		if err := s.setting(d, name); err != nil {
			return err
		}
	}
	return nil
}

// setting reads one subdirective.
func (s *Simulator) setting(d *caddyfile.Dispenser, name string) error {
	switch name {
	case "model":
		return oneArg(d, func(v string) error { s.Model = v; return nil })
	case "served_model_name":
		if s.ServedModelName = d.RemainingArgs(); len(s.ServedModelName) == 0 {
			return d.ArgErr()
		}
		return nil
	case "instance":
		return oneArg(d, func(v string) error { s.Instance = v; return nil })
	case "scheduling_policy":
		return oneArg(d, func(v string) error { s.SchedulingPolicy = v; return nil })
	case "tokenizer":
		return s.tokenizerSetting(d)
	case "enable_prefix_caching":
		s.EnablePrefixCaching = new(bool)
		return flagArg(d, s.EnablePrefixCaching)
	case "no_enable_prefix_caching":
		s.EnablePrefixCaching = new(bool)
		if d.NextArg() {
			return d.ArgErr()
		}
		return nil
	case "enable_prompt_tokens_details":
		return flagArg(d, &s.EnablePromptTokensDetails)
	case "zero_latency":
		return flagArg(d, &s.ZeroLatency)
	}
	if field := s.intSetting(name); field != nil {
		return oneArg(d, func(v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 {
				return d.Errf("%s %q is not a whole number of at least 1", name, v)
			}
			*field = n
			return nil
		})
	}
	if field := s.floatSetting(name); field != nil {
		return oneArg(d, func(v string) error {
			x, err := strconv.ParseFloat(v, 64)
			if err != nil || !(x >= 0) {
				return d.Errf("%s %q is not a number of at least 0", name, v)
			}
			*field = &x
			return nil
		})
	}
	return d.Errf("unrecognized subdirective %q", name)
}

func (s *Simulator) intSetting(name string) *int {
	switch name {
	case "block_size":
		return &s.BlockSize
	case "num_gpu_blocks_override":
		return &s.NumGPUBlocksOverride
	case "max_num_seqs":
		return &s.MaxNumSeqs
	case "max_num_batched_tokens":
		return &s.MaxNumBatchedTokens
	case "max_model_len":
		return &s.MaxModelLen
	}
	return nil
}

func (s *Simulator) floatSetting(name string) **float64 {
	switch name {
	case "prefill_token_us":
		return &s.PrefillTokenUS
	case "prefill_pair_ns":
		return &s.PrefillPairNS
	case "prefill_fixed_ms":
		return &s.PrefillFixedMS
	case "decode_token_ms":
		return &s.DecodeTokenMS
	case "decode_seq_us":
		return &s.DecodeSeqUS
	}
	return nil
}

func (s *Simulator) tokenizerSetting(d *caddyfile.Dispenser) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	name := d.Val()
	mod, err := caddyfile.UnmarshalModule(d, "inferrail.tokenizers."+name)
	if err != nil {
		return err
	}
	s.TokenizerRaw = caddyconfig.JSONModuleObject(mod, "name", name, nil)
	return nil
}

func oneArg(d *caddyfile.Dispenser, set func(string) error) error {
	if !d.NextArg() {
		return d.ArgErr()
	}
	if err := set(d.Val()); err != nil {
		return err
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	return nil
}

// flagArg reads a switch: on when it stands alone.
func flagArg(d *caddyfile.Dispenser, field *bool) error {
	*field = true
	if !d.NextArg() {
		return nil
	}
	on, err := strconv.ParseBool(d.Val())
	if err != nil {
		return d.Errf("%q is neither true nor false", d.Val())
	}
	*field = on
	if d.NextArg() {
		return d.ArgErr()
	}
	return nil
}

// Interface guards
var _ caddyfile.Unmarshaler = (*Simulator)(nil)
