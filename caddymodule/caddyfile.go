package caddymodule

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"github.com/dustin/go-humanize"
)

func init() {
	httpcaddyfile.RegisterGlobalOption("inferrail", parseApp)
	httpcaddyfile.RegisterDirective("inferrail", parseDirective)
	httpcaddyfile.RegisterDirectiveOrder("inferrail", httpcaddyfile.Before, "reverse_proxy")
}

// parseApp sets up the app from the global option. Syntax:
//
//	inferrail {
//	    model <name> {
//	        alias                   <names...>
//	        tokenizer               <name> [<args...>]
//	        block_size              <tokens>
//	        kv_capacity_blocks      <blocks>
//	        default_capacity_blocks <blocks>
//	        cost_model {
//	            prefill_token_secs <seconds>
//	            prefill_pair_secs  <seconds>
//	            prefill_fixed_secs <seconds>
//	        }
//	    }
//	    tokenizer_workers  <number>
//	    tokenizer_queue    <number>
//	    tokenizer_max_wait <duration>
//	    probe_interval     <duration>
//	    reload_drain       <duration>
//	    max_buffered_bytes <size>
//	}
func parseApp(d *caddyfile.Dispenser, existing any) (any, error) {
	d.Next() // consume option name
	if existing != nil {
		return nil, d.Err("the inferrail option is already specified")
	}
	app := &App{Tokenizer: new(TokenizerPool)}
	if d.NextArg() {
		return nil, d.ArgErr()
	}
	for d.NextBlock(0) {
		if err := app.unmarshalOption(d); err != nil {
			return nil, err
		}
	}
	if *app.Tokenizer == (TokenizerPool{}) {
		app.Tokenizer = nil
	}
	return httpcaddyfile.App{Name: appID, Value: caddyconfig.JSON(app, nil)}, nil
}

func (a *App) unmarshalOption(d *caddyfile.Dispenser) (err error) {
	switch name := d.Val(); name {
	case "model":
		m := new(Model)
		if !d.AllArgs(&m.Name) {
			return d.ArgErr()
		}
		for _, other := range a.Models {
			if other.Name == m.Name {
				return d.Errf("model %q already specified", m.Name)
			}
		}
		a.Models = append(a.Models, m)
		err = m.unmarshal(d)
	case "tokenizer_workers":
		err = once(d, &a.Tokenizer.Workers, intArg)
	case "tokenizer_queue":
		err = once(d, &a.Tokenizer.Queue, intArg)
	case "tokenizer_max_wait":
		err = once(d, &a.Tokenizer.MaxWait, durationArg)
	case "probe_interval":
		err = once(d, &a.ProbeInterval, durationArg)
	case "reload_drain":
		err = once(d, &a.ReloadDrain, durationArg)
	case "max_buffered_bytes":
		err = once(d, &a.MaxBufferedBytes, sizeArg)
	default:
		err = d.Errf("unrecognized subdirective %q", name)
	}
	return err
}

// unmarshal reads the block behind a model's name.
func (m *Model) unmarshal(d *caddyfile.Dispenser) error {
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		if err := m.unmarshalOption(d); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) unmarshalOption(d *caddyfile.Dispenser) (err error) {
	switch name := d.Val(); name {
	case "alias":
		names := d.RemainingArgs()
		if len(names) == 0 {
			return d.ArgErr()
		}
		m.Aliases = append(m.Aliases, names...)
	case "tokenizer":
		if m.TokenizerRaw != nil {
			return d.Err("tokenizer already specified")
		}
		if !d.NextArg() {
			return d.ArgErr()
		}
		kind := d.Val()
		u, err := unmarshalGuest(d, "inferrail.tokenizers", kind)
		if err != nil {
			return err
		}
		m.TokenizerRaw = caddyconfig.JSONModuleObject(u, "name", kind, nil)
	case "block_size":
		err = once(d, &m.BlockSize, intArg)
	case "kv_capacity_blocks":
		err = once(d, &m.KVCapacityBlocks, intArg)
	case "default_capacity_blocks":
		err = once(d, &m.DefaultCapacityBlocks, intArg)
	case "cost_model":
		if m.CostModel != nil {
			return d.Err("cost_model already specified")
		}
		m.CostModel = new(Cost)
		err = m.CostModel.unmarshal(d)
	default:
		err = d.Errf("unrecognized subdirective %q", name)
	}
	return err
}

// unmarshal reads a cost_model block.
func (c *Cost) unmarshal(d *caddyfile.Dispenser) error {
	if d.NextArg() {
		return d.ArgErr()
	}
	fields := map[string]**float64{
		"prefill_token_secs": &c.PrefillTokenSecs,
		"prefill_pair_secs":  &c.PrefillPairSecs,
		"prefill_fixed_secs": &c.PrefillFixedSecs,
	}
	for nesting := d.Nesting(); d.NextBlock(nesting); {
		name := d.Val()
		field, ok := fields[name]
		if !ok {
			return d.Errf("unrecognized subdirective %q", name)
		}
		if *field != nil {
			return d.Errf("%s already specified", name)
		}
		v, err := floatArg(d)
		if err != nil {
			return err
		}
		*field = &v
	}
	return nil
}

// unmarshalGuest reads a guest module of ours, whose name is the current token.
func unmarshalGuest(d *caddyfile.Dispenser, namespace, name string) (caddyfile.Unmarshaler, error) {
	var known []string
	for _, m := range caddy.GetModules(namespace) {
		known = append(known, m.ID.Name())
	}
	if !slices.Contains(known, name) {
		return nil, d.Errf("there is no %s.%s; there are %s", namespace, name, strings.Join(known, ", "))
	}
	return caddyfile.UnmarshalModule(d, namespace+"."+name)
}

// once reads the argument of the current subdirective into a field that is not set yet. Zero is how a field says that it
// is not set, so it is refused rather than taken for the default.
func once[T cmp.Ordered](d *caddyfile.Dispenser, field *T, read func(*caddyfile.Dispenser) (T, error)) error {
	var zero T
	name := d.Val()
	if *field != zero {
		return d.Errf("%s already specified", name)
	}
	v, err := read(d)
	if err != nil {
		return err
	}
	if v <= zero {
		return d.Errf("%s: want more than 0, got %q", name, d.Val())
	}
	*field = v
	return nil
}

// parseDirective sets up the handler and, with addresses, the proxy behind it. With addresses it is the short form: it
// expands to the handler and a `reverse_proxy` whose policy, transport, retries and health checks are set for engines.
// Subdirectives other than those below are those of `reverse_proxy`, and replace what the short form sets. Syntax:
//
//	inferrail [<matcher>] [<upstreams...>] {
//	    models        <names...>
//	    max_body_size <size>
//	    body_timeout  <duration>
//
//	    policy        <name> [{
//	        <options of the policy>
//	    }]
//	    fleet         <name>
//	    seed          <number>
//	    <subdirectives of reverse_proxy>
//	}
//
// Without upstreams it is the handler alone, and the proxy is written by hand:
//
//	reverse_proxy <upstreams...> {
//	    lb_policy  inferrail <policy>
//	    lb_retries 2
//	    transport  inferrail
//	}
func parseDirective(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h.Next() // the lookahead for a matcher begins at the directive name
	matchers, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	handler := new(Handler)
	form := shortForm{}
	d := h.Dispenser // which ExtractMatcherSet has rewound
	d.Next()         // consume directive name
	form.name = d.Token()
	for d.NextArg() {
		form.addresses = append(form.addresses, d.Token())
	}
	for d.NextBlock(0) {
		ours, err := handler.unmarshalOption(d)
		if err != nil {
			return nil, err
		}
		if !ours {
			if err := form.add(d); err != nil {
				return nil, err
			}
		}
	}
	front := caddyconfig.JSONModuleObject(handler, "handler", "inferrail", nil)
	if !form.proxies() {
		if form.used != nil {
			return nil, at(*form.used).Errf(
				"%s needs upstreams on the inferrail line; without them the proxy is a reverse_proxy of its own", form.used.Text)
		}
		return h.NewRoute(matchers, handler), nil
	}
	proxy, err := form.expand(h)
	if err != nil {
		return nil, err
	}
	route := caddyhttp.Route{HandlersRaw: []json.RawMessage{
		front, caddyconfig.JSONModuleObject(proxy, "handler", "reverse_proxy", nil),
	}}
	if matchers != nil {
		route.MatcherSetsRaw = []caddy.ModuleMap{matchers}
	}
	return []httpcaddyfile.ConfigValue{{Class: "route", Value: route}}, nil
}

// unmarshalOption reads a subdirective of the handler; ours is false for any other.
func (h *Handler) unmarshalOption(d *caddyfile.Dispenser) (ours bool, err error) {
	switch d.Val() {
	case "models":
		names := d.RemainingArgs()
		if len(names) == 0 {
			return true, d.ArgErr()
		}
		h.Models = append(h.Models, names...)
	case "max_body_size":
		err = once(d, &h.MaxBodySize, sizeArg)
	case "body_timeout":
		err = once(d, &h.BodyTimeout, durationArg)
	default:
		return false, nil
	}
	return true, err
}

// sizeArg reads the one argument of the current subdirective as a number of bytes, such as 64MiB.
func sizeArg(d *caddyfile.Dispenser) (int64, error) {
	name := d.Val()
	if !d.NextArg() {
		return 0, d.ArgErr()
	}
	size, err := humanize.ParseBytes(d.Val())
	if err != nil || size > 1<<62 {
		return 0, d.Errf("%s: want a size such as 64MiB, got %q", name, d.Val())
	}
	if d.NextArg() {
		return 0, d.ArgErr()
	}
	return int64(size), nil
}

// shortForm collects what the directive hands to the proxy.
type shortForm struct {
	name      caddyfile.Token
	addresses []caddyfile.Token
	policy    []caddyfile.Token // subdirectives of lb_policy inferrail
	rest      []caddyfile.Token // subdirectives of reverse_proxy
	transport []caddyfile.Token // the transport of its own
	given     map[string]bool   // the subdirectives' names
	retries   string
	used      *caddyfile.Token // the first subdirective that needs the proxy
}

func (f *shortForm) proxies() bool {
	return len(f.addresses) > 0 || f.given["to"] || f.given["dynamic"]
}

// add takes the current subdirective, which is the policy's or the proxy's.
func (f *shortForm) add(d *caddyfile.Dispenser) error {
	name, first := d.Val(), d.Token()
	if f.used == nil {
		f.used = &first
	}
	if f.given == nil {
		f.given = make(map[string]bool)
	}
	segment := d.NextSegment()
	switch name {
	case "policy", "fleet", "seed", "transport", "lb_retries":
		if f.given[name] {
			return at(first).Errf("%s already specified", name)
		}
	}
	switch name {
	case "policy", "fleet", "seed":
		f.policy = append(f.policy, segment...)
	case "lb_policy":
		return at(first).Err("lb_policy is set by inferrail; choose a routing policy with policy")
	case "transport":
		if len(segment) < 2 || segment[1].Text != "inferrail" {
			return at(first).Err(
				"the transport must be inferrail, which has the options of transport http")
		}
		f.transport = segment
	case "lb_try_duration", "lb_try_interval":
		return at(first).Errf("%s would make retries wait across a reload; set lb_retries", name)
	case "lb_retries":
		if len(segment) == 2 {
			f.retries = segment[1].Text
		}
		f.rest = append(f.rest, segment...)
	default:
		f.rest = append(f.rest, segment...)
	}
	f.given[name] = true
	return nil
}

// defaults are the subdirectives of reverse_proxy that the short form sets unless one of the names is given.
var defaults = []struct {
	unless []string
	text   string
}{
	{[]string{"lb_retries"}, "lb_retries 2"},
	{[]string{"health_uri", "health_port"}, "health_uri /health"},
	{[]string{"health_interval"}, "health_interval 1s"},
	{[]string{"health_timeout"}, "health_timeout 2s"},
	{[]string{"health_fails"}, "health_fails 3"},
	{[]string{"fail_duration"}, "fail_duration 2s"},
	{[]string{"max_fails"}, "max_fails 3"},
}

// expand makes the proxy.
func (f *shortForm) expand(h httpcaddyfile.Helper) (*reverseproxy.Handler, error) {
	body := block(tokens("lb_policy inferrail"), f.policy)
	body = append(body, f.rest...)
	for _, d := range defaults {
		set := false
		for _, name := range d.unless {
			set = set || f.given[name]
		}
		if !set {
			body = append(body, tokens(d.text)...)
		}
	}
	attempts := defaultMaxAttempts
	if n, err := strconv.Atoi(f.retries); err == nil && n >= 0 {
		attempts = n + 1
	}
	limit := tokens(fmt.Sprintf("max_attempts %d", attempts))
	switch {
	case !f.given["transport"]:
		body = append(body, block(tokens("transport inferrail"), limit)...)
	case !slices.ContainsFunc(f.transport, func(t caddyfile.Token) bool { return t.Text == "max_attempts" }):
		f.transport = with(f.transport, limit)
		fallthrough
	default:
		body = append(body, f.transport...)
	}
	all := block(append([]caddyfile.Token{f.name}, f.addresses...), body)
	proxy := new(reverseproxy.Handler)
	if err := proxy.UnmarshalCaddyfile(caddyfile.NewDispenser(all)); err != nil {
		return nil, err
	}
	return proxy, proxy.FinalizeUnmarshalCaddyfile(h)
}

// at is a dispenser whose errors are about token.
func at(token caddyfile.Token) *caddyfile.Dispenser {
	d := caddyfile.NewDispenser([]caddyfile.Token{token})
	d.Next()
	return d
}

// tokens tokenizes one line of the short form's own. The line is also the file that the tokens seem to come from: tokens
// of different files are never on the same line.
func tokens(line string) []caddyfile.Token {
	t, err := caddyfile.Tokenize([]byte(line), "inferrail: "+line)
	if err != nil { // only constants and numbers come here
		panic(err)
	}
	return t
}

// with adds a line to the block of a segment, which may have none yet.
func with(segment, line []caddyfile.Token) []caddyfile.Token {
	if last := len(segment) - 1; segment[last].Text == "}" {
		return slices.Concat(segment[:last], line, segment[last:])
	}
	return block(segment, line)
}

// block appends body in braces to the tokens of a line. An empty body gives the line alone. The closing brace seems to come
// from a file of its own: a brace with a token behind it on its line, such as that of the block around, closes nothing.
func block(line, body []caddyfile.Token) []caddyfile.Token {
	if len(body) == 0 {
		return line
	}
	open := line[len(line)-1]
	open.Text = "{"
	shut := caddyfile.Token{File: "inferrail: end of " + line[0].Text, Text: "}"}
	out := append(append([]caddyfile.Token{}, line...), open)
	return append(append(out, body...), shut)
}
