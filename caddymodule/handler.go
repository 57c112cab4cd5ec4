package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/inferrail/inferrail/internal/openai"
	"github.com/inferrail/inferrail/tokenize"
)

func init() { caddy.RegisterModule(new(Handler)) }

const (
	defaultMaxBodySize = 64 << 20
	defaultBodyTimeout = time.Minute
	// inlineTokenizeBytes is the body size up to which tokenizing on the request's own goroutine costs less than a hand-over.
	inlineTokenizeBytes = 1 << 10
	// maxTokenizeBytes is the size of a body beyond which no prompt fits any engine; tokens and hashes would take several
	// times its memory.
	maxTokenizeBytes = 16 << 20
	// longPrompt is the length in tokens from which a prompt is compared with what the engines take.
	longPrompt = 1 << 14
	// bytesPerToken estimates the length of prompts that are not tokenized.
	bytesPerToken = 4
)

// Handler is the OpenAI-compatible front of a fleet. It goes in front of a `reverse_proxy` whose policy and transport are
// `inferrail`: it reads the request, resolves the model, tokenizes the prompt and answers what needs no engine.
//
// Placeholders, set before the proxy runs:
//
//	Placeholder | Description
//	------------|------------
//	`{http.inferrail.model}` | The model's name, aliases resolved
//	`{http.inferrail.request_id}` | The request's id
//	`{http.inferrail.prompt_tokens}` | The prompt's length in tokens, an estimate where there is no prediction
type Handler struct {
	// The models served here, by name. Default: all of the app's.
	Models []string `json:"models,omitempty"`

	// The largest request body in bytes; a larger one is answered 413. Default: 64 MiB.
	MaxBodySize int64 `json:"max_body_size,omitempty"`

	// The longest time in which a request's body must arrive; after it the request is answered 408. Default: 1m.
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`

	app    *App
	logger *zap.Logger
	served map[string]*Model // by name and alias
	models []*Model          // in the app's order

	mu      sync.Mutex
	proxies []*Selection // that the app has found behind this handler
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.inferrail", New: func() caddy.Module { return new(Handler) }}
}

// Provision resolves the models.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	if h.MaxBodySize == 0 {
		h.MaxBodySize = defaultMaxBodySize
	}
	if h.BodyTimeout == 0 {
		h.BodyTimeout = caddy.Duration(defaultBodyTimeout)
	}
	var err error
	if h.app, err = inferrailApp(ctx); err != nil {
		return err
	}
	if len(h.app.Models) == 0 {
		return errors.New("no model is configured: add `model <name>` to the global option `inferrail` (JSON: apps.inferrail.models)")
	}
	wanted := make(map[*Model]bool)
	for i, name := range h.Models {
		m, ok := h.app.model(name)
		if !ok || name == "" {
			return fmt.Errorf("models[%d]: model %q is not configured in apps.inferrail.models", i, name)
		}
		wanted[m] = true
	}
	h.served = make(map[string]*Model)
	for _, m := range h.app.Models {
		if len(wanted) > 0 && !wanted[m] {
			continue
		}
		h.models = append(h.models, m)
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			h.served[name] = m
		}
	}
	return nil
}

// Validate checks the settings.
func (h *Handler) Validate() error {
	if h.MaxBodySize < 0 {
		return fmt.Errorf("max_body_size: must not be negative, got %d", h.MaxBodySize)
	}
	if h.BodyTimeout < 0 {
		return fmt.Errorf("body_timeout: must not be negative, got %s", time.Duration(h.BodyTimeout))
	}
	return nil
}

// ServeHTTP answers a request or hands it to the proxy.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	head, leave := h.app.drain.enter(r)
	defer leave()
	out := &responseWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}, head: head}
	id := requestID(r)
	out.Header().Set(headerRequestID, id)

	switch r.URL.Path {
	case "/v1/chat/completions", "/v1/completions":
		if r.Method != http.MethodPost {
			h.methodNotAllowed(out, r, http.MethodPost)
			return nil
		}
		return h.infer(out, r, next, id)
	case "/v1/models", "/health":
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.methodNotAllowed(out, r, "GET, HEAD")
			return nil
		}
		if r.URL.Path == "/health" {
			h.serveHealth(out)
		} else {
			h.serveModels(out)
		}
		return nil
	}
	h.refuse(out, nil, http.StatusNotFound, fmt.Sprintf("Unknown request URL: %s %s.", r.Method, r.URL.Path), "", "unknown_url")
	return nil
}

func (h *Handler) methodNotAllowed(w http.ResponseWriter, r *http.Request, allow string) {
	w.Header().Set("Allow", allow)
	h.refuse(w, nil, http.StatusMethodNotAllowed,
		fmt.Sprintf("Not allowed to %s on %s; allowed: %s.", r.Method, r.URL.Path, allow), "", "method_not_allowed")
}

// infer serves an inference request.
func (h *Handler) infer(w *responseWriter, r *http.Request, next caddyhttp.Handler, id string) error {
	req := &request{id: id, arrival: now()}
	body, release, fault := h.readBody(w, r)
	defer release()
	if fault != nil {
		fault.answer(h, w)
		return nil
	}
	if fault = h.resolve(req, body); fault != nil {
		fault.answer(h, w)
		return nil
	}
	h.tokenize(r, req)

	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	repl.Set("http.inferrail.model", req.model.Name)
	repl.Set("http.inferrail.request_id", req.id)
	repl.Set("http.inferrail.prompt_tokens", req.promptTokens)

	r = r.WithContext(context.WithValue(r.Context(), requestCtxKey, req))
	r.Header.Set(headerRequestID, id)
	r.ContentLength = int64(len(req.body))
	r.Header.Set("Content-Length", strconv.Itoa(len(req.body)))
	r.Header.Del("Expect")
	r.TransferEncoding = nil
	// Our transport gives each attempt the bytes itself; another one reads them here, once.
	r.Body = io.NopCloser(bytes.NewReader(req.body))
	return h.forward(w, r, next, req)
}

// resolve finds the model and replaces an alias in the body.
func (h *Handler) resolve(req *request, body []byte) *fault {
	fields, err := openai.Scan(body)
	if err != nil {
		return &fault{status: http.StatusBadRequest, reason: "invalid_json",
			message: "We could not parse the JSON body of your request: " + err.Error() + "."}
	}
	switch {
	case fields.ModelInvalid:
		return &fault{status: http.StatusBadRequest, reason: "invalid_type", param: "model", message: "model must be a string."}
	case fields.Model == "" && len(h.models) > 1:
		return &fault{status: http.StatusBadRequest, reason: "missing_model", param: "model",
			message: "You must provide a model: this server serves several."}
	case fields.Model == "":
		req.model = h.models[0]
	default:
		m, ok := h.served[fields.Model]
		if !ok {
			return &fault{status: http.StatusNotFound, reason: "model_not_found", param: "model",
				message: fmt.Sprintf("The model `%s` does not exist.", clip(fields.Model))}
		}
		req.model = m
	}
	req.fields, req.body = fields, body
	if fields.Model != "" && fields.Model != req.model.Name {
		req.body = openai.ReplaceModel(body, fields, req.model.Name)
	}
	return nil
}

// clip bounds what a client's own words may add to an answer.
func clip(s string) string {
	const limit = 256
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "…"
}

// tokenize finds the request's tokens and blocks, or estimates its length.
func (h *Handler) tokenize(r *http.Request, req *request) {
	start := time.Now()
	prompt, result := h.app.tokens(r.Context(), req.model, r.URL.Path, req.body)
	h.app.metrics.tokenized.WithLabelValues(req.model.Name, result).Inc()
	if result != resultOK {
		req.promptTokens = len(req.body) / bytesPerToken
		return
	}
	req.prompt = req.model.prompt(prompt.Tokens, req.fields.CacheSalt)
	req.promptTokens = len(prompt.Tokens)
	h.app.metrics.tokenizeSeconds.WithLabelValues(req.model.Name).Observe(time.Since(start).Seconds())
}

// Results of tokenizing, as the label of inferrail_tokenized_requests_total; an unsupported request adds the tokenizer's
// own reason.
const (
	resultOK          = "ok"
	resultInvalid     = "invalid"
	resultUnavailable = "unavailable"
	resultBusy        = "busy"
	resultSlow        = "slow"
	resultCancelled   = "cancelled"
	resultTooLong     = "too_long"
)

// tokens tokenizes the body of a request to path and says why there are none.
func (a *App) tokens(ctx context.Context, m *Model, path string, body []byte) (prompt tokenize.Prompt, result string) {
	if m.tokens == nil {
		return prompt, resultUnavailable
	}
	if len(body) > maxTokenizeBytes {
		return prompt, resultTooLong
	}
	var err error
	work := func() {
		if path == "/v1/chat/completions" {
			prompt, err = m.tokens.Chat(body)
		} else {
			prompt, err = m.tokens.Completion(body)
		}
	}
	if len(body) <= inlineTokenizeBytes {
		work()
	} else if poolErr := a.pool.Do(ctx, work); poolErr != nil {
		return tokenize.Prompt{}, poolResult(poolErr)
	}
	if unsupported := (*tokenize.UnsupportedError)(nil); errors.As(err, &unsupported) {
		return tokenize.Prompt{}, "unsupported_" + unsupported.Reason
	}
	if err != nil || len(prompt.Tokens) == 0 {
		return tokenize.Prompt{}, resultInvalid
	}
	if len(prompt.Tokens) > longPrompt && len(prompt.Tokens) > a.contextLen(m) {
		return tokenize.Prompt{}, resultTooLong
	}
	return prompt, resultOK
}

// contextLen is the longest prompt that an engine may take: the model's context length, or as many tokens as its KV cache
// is assumed to hold.
func (a *App) contextLen(m *Model) int {
	if n := a.modelLens()[m.Name]; n > 0 {
		return n
	}
	return max(m.KVCapacityBlocks, m.DefaultCapacityBlocks) * m.BlockSize
}

func poolResult(err error) string {
	switch {
	case errors.Is(err, tokenize.ErrBusy):
		return resultBusy
	case errors.Is(err, tokenize.ErrSlow):
		return resultSlow
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return resultCancelled
	}
	return resultUnavailable
}

// forward hands the request to the proxy and accounts for how it ended, also when the proxy panics because a started
// response broke.
func (h *Handler) forward(w *responseWriter, r *http.Request, next caddyhttp.Handler, req *request) (err error) {
	w.firstByte = func() {
		if a := req.current; a != nil && req.fields.Stream && w.status == http.StatusOK {
			h.app.metrics.ttft.WithLabelValues(req.model.Name, a.policy, a.replica.key.address).
				Observe((now() - req.arrival).Seconds())
		}
	}
	finished := false
	defer func() {
		req.end()
		h.account(w, r, req, finished)
		req.release()
	}()
	err = next.ServeHTTP(w, r)
	if err != nil && !w.wrote && r.Context().Err() == nil {
		h.upstreamFault(req, err).answer(h, w)
		err = nil
	}
	finished = true
	return err
}

// upstreamFault turns the proxy's error into an answer in the API's shape.
func (h *Handler) upstreamFault(req *request, err error) *fault {
	f := &fault{model: req.model, status: http.StatusBadGateway, reason: "engine_unreachable",
		message: "The engines could not be reached. Try again later."}
	var handlerErr caddyhttp.HandlerError
	if errors.As(err, &handlerErr) && handlerErr.StatusCode != 0 {
		f.status = handlerErr.StatusCode
	}
	switch {
	case f.status == http.StatusServiceUnavailable:
		f.reason, f.message = "no_replica", "No replica of the model is available. Try again later."
	case f.status == http.StatusGatewayTimeout:
		f.reason, f.message = "engine_timeout", "The engines did not answer in time."
	}
	if f.status == http.StatusServiceUnavailable {
		f.retryAfter = 1
	}
	h.logger.Warn("request failed at the engines", zap.String("request_id", req.id), zap.String("model", req.model.Name),
		zap.Strings("tried", req.tried), zap.Int("attempts", req.attempts), zap.Error(err))
	return f
}

// account counts the outcome of a request exactly once.
func (h *Handler) account(w *responseWriter, r *http.Request, req *request, finished bool) {
	address, policy := "", ""
	if req.current != nil {
		address, policy = req.current.replica.key.address, req.current.policy
	}
	status := strconv.Itoa(w.status/100) + "xx"
	switch {
	case r.Context().Err() != nil:
		status = "cancelled"
		h.app.metrics.disconnects.WithLabelValues(req.model.Name).Inc()
	case !finished:
		status = "aborted"
	}
	h.app.metrics.requests.WithLabelValues(req.model.Name, address, status).Inc()
	if req.current != nil {
		h.app.metrics.duration.WithLabelValues(req.model.Name, policy, address).Observe((now() - req.arrival).Seconds())
	}
}

// Interface guards
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
