package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
)

func init() { caddy.RegisterModule(new(Transport)) }

// Transport is a transport of `reverse_proxy`: Caddy's own HTTP transport, watched. It sees each attempt begin, answer,
// end or fail, hands the same bytes to each attempt, and turns what may be tried again into an error that
// `reverse_proxy` retries: a connection that broke before the first byte of the response's body, and a 502, 503 or 504.
type Transport struct {
	// Settings of Caddy's HTTP transport. Defaults that differ from Caddy's: `dial_timeout` 1s; idle connections are kept
	// for 4s, less than the 5s after which uvicorn, the engines' HTTP server, closes them; up to 1024 idle connections a
	// host; no compression, so that bodies pass unchanged.
	HTTP *reverseproxy.HTTPTransport `json:"http,omitempty"`

	// Attempts at a request in all, the first included. Must be one more than the proxy's `lb_retries`: a 503 that cannot
	// be tried again is handed to the client as the engine wrote it. Default: 3. 1 is no retries.
	MaxAttempts int `json:"max_attempts,omitempty"`

	// Pass on the head of a streamed response at once, as engines send it, although nothing has been computed yet. By
	// default the head waits for the first byte of the body, so that a request still queued in an engine that dies can
	// move to another. Default: false.
	EarlyHead bool `json:"early_head,omitempty"`

	http *reverseproxy.HTTPTransport
	app  *App
}

// CaddyModule returns the Caddy module information.
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.inferrail",
		New: func() caddy.Module { return new(Transport) },
	}
}

const (
	defaultMaxAttempts     = 3
	defaultDialTimeout     = caddy.Duration(time.Second)
	defaultIdleConnTimeout = caddy.Duration(4 * time.Second)
	defaultIdleConns       = 1024
	// staleRetries bounds how often a request is sent again to the same replica because the pooled connection turned out
	// to be closed.
	staleRetries = 3
)

// Provision sets up the HTTP transport inside.
func (t *Transport) Provision(ctx caddy.Context) error {
	if t.MaxAttempts == 0 {
		t.MaxAttempts = defaultMaxAttempts
	}
	t.http = t.HTTP
	if t.http == nil {
		t.http = new(reverseproxy.HTTPTransport)
	}
	if t.http.DialTimeout == 0 {
		t.http.DialTimeout = defaultDialTimeout
	}
	if t.http.KeepAlive == nil {
		t.http.KeepAlive = new(reverseproxy.KeepAlive)
	}
	if t.http.KeepAlive.IdleConnTimeout == 0 {
		t.http.KeepAlive.IdleConnTimeout = defaultIdleConnTimeout
	}
	if t.http.KeepAlive.MaxIdleConnsPerHost == 0 {
		t.http.KeepAlive.MaxIdleConnsPerHost = defaultIdleConns
	}
	if t.http.Compression == nil {
		t.http.Compression = new(bool)
	}
	var err error
	if t.app, err = inferrailApp(ctx); err != nil {
		return err
	}
	return t.http.Provision(ctx)
}

// Validate checks the settings.
func (t *Transport) Validate() error {
	if t.MaxAttempts < 1 {
		return fmt.Errorf("max_attempts: want at least 1, got %d", t.MaxAttempts)
	}
	return nil
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	if t.http == nil || t.http.Transport == nil {
		return nil
	}
	return t.http.Cleanup()
}

// RoundTrip sends one attempt of a request. Requests that did not come through the `inferrail` handler pass as in
// Caddy's own transport.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	req := requestFrom(r.Context())
	if req == nil || req.current == nil {
		return t.http.RoundTrip(r)
	}
	a := req.current
	res, err := t.send(r, req)
	if err == nil && (res.StatusCode < http.StatusOK || res.StatusCode > 599) {
		_ = res.Body.Close() // no server can pass such a status on
		err = fmt.Errorf("engine answered with status %d", res.StatusCode)
	}
	if err != nil {
		a.fail()
		return nil, t.retryable(r.Context(), req, err)
	}
	a.responseHead()
	for _, name := range ownHeaders {
		res.Header.Del(name) // an engine, or a router behind this one, has its own
	}
	switch {
	case res.StatusCode == http.StatusBadGateway, res.StatusCode == http.StatusServiceUnavailable,
		res.StatusCode == http.StatusGatewayTimeout:
		if req.attempts < t.MaxAttempts {
			a.fail()
			go discard(res.Body) // it may stall
			return nil, t.retryable(r.Context(), req, fmt.Errorf("engine answered %s", res.Status))
		}
		fallthrough
	case res.StatusCode != http.StatusOK: // no prompt was computed
		res.Body = observe(res.Body, nil, func(observation) { a.fail() })
		return res, nil
	}
	return t.watch(r, req, a, res)
}

// send does the round trip, again on a new connection if the pooled one had been closed by the engine: it broke without a
// byte of an answer.
func (t *Transport) send(r *http.Request, req *request) (*http.Response, error) {
	for tries := 0; ; tries++ {
		var reused bool
		var answered atomic.Bool
		ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			GotConn:              func(info httptrace.GotConnInfo) { reused = info.Reused },
			GotFirstResponseByte: func() { answered.Store(true) },
		})
		out := r.WithContext(ctx)
		out.Body = io.NopCloser(bytes.NewReader(req.body))
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(req.body)), nil }
		out.ContentLength = int64(len(req.body))
		res, err := t.http.RoundTrip(out)
		if err == nil || !reused || answered.Load() || tries == staleRetries || r.Context().Err() != nil {
			return res, err
		}
	}
}

// watch hands the response on with its body observed. Unless the head goes early, it waits for the first byte of the
// body, which is where an attempt can no longer be taken back.
func (t *Transport) watch(r *http.Request, req *request, a *attempt, res *http.Response) (*http.Response, error) {
	body := observe(res.Body, a.firstByte, func(o observation) {
		if !o.any {
			a.fail()
			return
		}
		if !t.app.metrics.delivered(req, o) && req.model.mismatch.CompareAndSwap(false, true) {
			t.app.logger.Warn("an engine counts a prompt's tokens differently; is the model's tokenizer the engine's?",
				zap.String("model", req.model.Name), zap.String("replica", a.replica.key.address),
				zap.String("request_id", req.id), zap.Int("engine", o.prompt), zap.Int("router", req.promptTokens))
		}
		a.finish(o.generated(req.fields.MaxTokens, req.model.encode))
	})
	if a.placement != nil {
		body.text = new(outputText)
	}
	res.Body = body
	if t.EarlyHead {
		return res, nil
	}
	if err := body.peek(); err != nil {
		_ = body.ReadCloser.Close()
		a.fail()
		return nil, t.retryable(r.Context(), req, fmt.Errorf("engine closed the response before its first byte: %w", err))
	}
	return res, nil
}

// retryable marks err as safe to try again while attempts remain. Nothing has reached the client, and asking another
// engine for the same completion has no side effects.
func (t *Transport) retryable(ctx context.Context, req *request, err error) error {
	switch {
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case req.attempts >= t.MaxAttempts:
		return err
	}
	t.app.metrics.retried(req)
	return reverseproxy.NewDialError(err)
}

// discard reads what little an engine says with an error, so that the connection can be used again.
func discard(body io.ReadCloser) {
	defer time.AfterFunc(discardTimeout, func() { _ = body.Close() }).Stop()
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// TLSEnabled tells whether the engines are reached over TLS.
func (t *Transport) TLSEnabled() bool {
	inner := t.http
	if inner == nil {
		inner = t.HTTP
	}
	return inner != nil && inner.TLSEnabled()
}

// EnableTLS turns TLS on, as `https://` addresses do.
func (t *Transport) EnableTLS(base *reverseproxy.TLSConfig) error {
	if t.HTTP == nil {
		t.HTTP = new(reverseproxy.HTTPTransport)
	}
	return t.HTTP.EnableTLS(base)
}

// EnableH2C turns on HTTP/2 without TLS, as `h2c://` addresses do.
func (t *Transport) EnableH2C() error {
	if t.HTTP == nil {
		t.HTTP = new(reverseproxy.HTTPTransport)
	}
	return t.HTTP.EnableH2C()
}

// OverrideHealthCheckScheme lets health checks use the scheme of the requests.
func (t *Transport) OverrideHealthCheckScheme(base *url.URL, port string) {
	t.http.OverrideHealthCheckScheme(base, port)
}

// ProxyProtocolEnabled tells whether connections begin with a PROXY header.
func (t *Transport) ProxyProtocolEnabled() bool { return t.http.ProxyProtocolEnabled() }

// RequestHeaderOps gives the header changes that the HTTP transport wants.
func (t *Transport) RequestHeaderOps() *headers.HeaderOps { return t.http.RequestHeaderOps() }

// UnmarshalCaddyfile sets up the transport from Caddyfile tokens. Subdirectives other than those below are those of
// Caddy's `transport http`. Syntax:
//
//	transport inferrail {
//	    max_attempts <number>
//	    early_head
//	    <options of transport http>
//	}
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume transport name
	name := d.Token()
	if d.NextArg() {
		return d.ArgErr()
	}
	var rest []caddyfile.Token
	for d.NextBlock(0) {
		switch d.Val() {
		case "max_attempts":
			if t.MaxAttempts != 0 {
				return d.Err("max_attempts already specified")
			}
			n, err := intArg(d)
			if err != nil {
				return err
			}
			if n < 1 {
				return d.Errf("max_attempts: want at least 1, got %d", n)
			}
			t.MaxAttempts = n
		case "early_head":
			if t.EarlyHead {
				return d.Err("early_head already specified")
			}
			if d.NextArg() {
				return d.ArgErr()
			}
			t.EarlyHead = true
		default:
			rest = append(rest, d.NextSegment()...)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	t.HTTP = new(reverseproxy.HTTPTransport)
	return t.HTTP.UnmarshalCaddyfile(caddyfile.NewDispenser(block([]caddyfile.Token{name}, rest)))
}

// Interface guards
var (
	_ caddy.Provisioner                                = (*Transport)(nil)
	_ caddy.Validator                                  = (*Transport)(nil)
	_ caddy.CleanerUpper                               = (*Transport)(nil)
	_ http.RoundTripper                                = (*Transport)(nil)
	_ reverseproxy.TLSTransport                        = (*Transport)(nil)
	_ reverseproxy.H2CTransport                        = (*Transport)(nil)
	_ reverseproxy.HealthCheckSchemeOverriderTransport = (*Transport)(nil)
	_ reverseproxy.ProxyProtocolTransport              = (*Transport)(nil)
	_ reverseproxy.RequestHeaderOpsTransport           = (*Transport)(nil)
	_ caddyfile.Unmarshaler                            = (*Transport)(nil)
)
