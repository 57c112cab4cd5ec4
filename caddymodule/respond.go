package caddymodule

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/google/uuid"

	"github.com/inferrail/inferrail/internal/openai"
)

// fault is an answer of the router's own to a request that no engine will see.
type fault struct {
	status     int
	message    string
	param      string
	reason     string // the error's code, the value of the x-inferrail-reason header and a label
	retryAfter int    // seconds; 0 is no Retry-After
	model      *Model // nil while it is not known
	close      bool   // the body has not been read to its end, so the connection cannot be used again
	gone       bool   // the client has left
	answered   bool   // the answer has been written and counted
}

// statusClientLeft is what access logs show for clients that left, as they do for those that leave the proxy.
const statusClientLeft = 499

// headerReason repeats the reason of the router's own errors.
const headerReason = "X-Inferrail-Reason"

func (f *fault) answer(h *Handler, w http.ResponseWriter) {
	switch {
	case f.answered:
		return
	case f.gone:
		h.app.metrics.errors.WithLabelValues("", f.reason).Inc()
		w.WriteHeader(statusClientLeft)
		return
	}
	if f.close {
		// Without these, an HTTP/1 server waits for the rest of the body before it sends the answer, and again before it closes
		// the connection.
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		_ = rc.SetReadDeadline(time.Now())
		w.Header().Set("Connection", "close")
	}
	f.write(h, w)
}

func (f *fault) write(h *Handler, w http.ResponseWriter) {
	if f.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.retryAfter))
	}
	h.refuse(w, f.model, f.status, f.message, f.param, f.reason)
}

// refuse answers a request with an error of the router's own.
func (h *Handler) refuse(w http.ResponseWriter, m *Model, status int, message, param, reason string) {
	name := ""
	if m != nil {
		name = m.Name
	}
	h.app.metrics.errors.WithLabelValues(name, reason).Inc()
	w.Header().Set(headerReason, reason)
	openai.WriteError(w, status, message, param, reason)
}

// maxDiscard bounds how much of a refused body is read and dropped, so that the client, still sending, gets to read the
// refusal rather than a reset connection.
const (
	maxDiscard     = 256 << 20
	discardTimeout = 5 * time.Second
)

// readBody reads the request's body within the limits of size, time and memory. The caller must call release when the
// body is no longer held.
func (h *Handler) readBody(w *responseWriter, r *http.Request) (body []byte, release func(), f *fault) {
	metered := &meteredReader{Reader: r.Body, used: &h.app.metrics.bodyBytes, limit: h.app.MaxBufferedBytes}
	body, f = h.readMetered(w, r, metered)
	if f != nil && r.ProtoMajor > 1 {
		f.close = false // the stream ends with the handler; the connection has others
	}
	return body, metered.release, f
}

func (h *Handler) readMetered(w *responseWriter, r *http.Request, from *meteredReader) ([]byte, *fault) {
	tooLarge := &fault{status: http.StatusRequestEntityTooLarge, reason: "body_too_large", close: true,
		message: fmt.Sprintf("The request body is larger than the limit of %d bytes.", h.MaxBodySize)}
	rc := http.NewResponseController(w)
	if r.ContentLength > h.MaxBodySize {
		if !strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
			h.answerThenDiscard(w, r, rc, tooLarge)
		}
		return nil, tooLarge
	}
	_ = rc.SetReadDeadline(time.Now().Add(time.Duration(h.BodyTimeout))) // unsupported only by test recorders
	// A buffer as large as announced would let a client reserve memory without sending; beyond a mebibyte it grows with
	// what comes.
	buf := bytes.NewBuffer(make([]byte, 0, min(max(r.ContentLength, 0), 1<<20)+bytes.MinRead))
	_, err := buf.ReadFrom(io.LimitReader(from, h.MaxBodySize+1))
	switch {
	case err == nil && int64(buf.Len()) > h.MaxBodySize:
		from.release() // what follows is dropped
		h.answerThenDiscard(w, r, rc, tooLarge)
		return nil, tooLarge
	case err == nil:
		_ = rc.SetReadDeadline(time.Time{})
		return buf.Bytes(), nil
	case errors.Is(err, errNoRoom):
		overloaded := &fault{status: http.StatusServiceUnavailable, reason: "overloaded", retryAfter: 1,
			message: "The server holds too many requests. Try again later."}
		from.release()
		h.answerThenDiscard(w, r, rc, overloaded)
		return nil, overloaded
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &fault{status: http.StatusRequestTimeout, reason: "body_timeout", close: true,
			message: fmt.Sprintf("The request body did not arrive within %s.", time.Duration(h.BodyTimeout))}
	case errors.Is(err, io.ErrUnexpectedEOF): // the client may still read
		return nil, &fault{status: http.StatusBadRequest, reason: "body_incomplete", close: true,
			message: "The request body ended before its announced end."}
	case r.Context().Err() != nil:
		return nil, &fault{gone: true, reason: "client_left"}
	}
	return nil, &fault{status: http.StatusBadRequest, reason: "body_unreadable", close: true,
		message: "The request body could not be read."}
}

// answerThenDiscard refuses a body that is still arriving and then drops it. Only HTTP/1 needs that: the others stop a client
// when the handler ends.
func (h *Handler) answerThenDiscard(w *responseWriter, r *http.Request, rc *http.ResponseController, f *fault) {
	f.answered = true
	if r.ProtoMajor > 1 {
		f.write(h, w)
		return
	}
	_ = rc.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	f.write(h, w)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(discardTimeout))
	_, _ = io.CopyN(io.Discard, r.Body, maxDiscard)
}

// responseWriter notes the status and the first byte of a response.
type responseWriter struct {
	*caddyhttp.ResponseWriterWrapper
	head      func(http.Header) // called before the head goes out
	firstByte func()            // called with the first byte of the body; may be nil
	status    int
	wrote     bool
	bodyBegan bool
}

// WriteHeader notes the status.
func (w *responseWriter) WriteHeader(status int) {
	if !w.wrote && status >= http.StatusOK {
		w.wrote, w.status = true, status
		w.head(w.Header())
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write notes the first byte.
func (w *responseWriter) Write(p []byte) (int, error) {
	w.begin(len(p))
	return w.ResponseWriterWrapper.Write(p)
}

// ReadFrom notes the first byte and keeps the copy loop of the writer below out of its way.
func (w *responseWriter) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{w}, r)
}

func (w *responseWriter) begin(n int) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if n > 0 && !w.bodyBegan {
		w.bodyBegan = true
		if w.firstByte != nil {
			w.firstByte()
		}
	}
}

// maxRequestID is the longest client's id that is passed on.
const maxRequestID = 128

// requestID is the client's own id when it is well formed, else a new one.
func requestID(r *http.Request) string {
	id := r.Header.Get(headerRequestID)
	if id == "" || len(id) > maxRequestID {
		return uuid.NewString()
	}
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.:/+=@", c) >= 0:
		default:
			return uuid.NewString()
		}
	}
	return id
}

// modelCard is an entry of /v1/models.
type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	OwnedBy     string `json:"owned_by"`
	Root        string `json:"root"`
	Parent      any    `json:"parent"`
	MaxModelLen any    `json:"max_model_len"`
}

// startedAt is the creation time that the model list gives, as engines give theirs.
var startedAt = time.Now().Unix()

// serveModels lists the models and their aliases in the configuration's order.
func (h *Handler) serveModels(w http.ResponseWriter) {
	list := struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{Object: "list", Data: []modelCard{}}
	lens := h.app.modelLens()
	for _, m := range h.models {
		card := modelCard{Object: "model", Created: startedAt, OwnedBy: "inferrail", Root: m.Name}
		if n := lens[m.Name]; n > 0 {
			card.MaxModelLen = n
		}
		for _, id := range append([]string{m.Name}, m.Aliases...) {
			card.ID = id
			list.Data = append(list.Data, card)
		}
	}
	writeJSON(w, http.StatusOK, list)
}

// modelLens gives the shortest context that any engine reports for each model.
func (a *App) modelLens() map[string]int {
	lens := make(map[string]int)
	for _, r := range a.replicas() {
		r.mu.Lock()
		for _, c := range r.cards {
			if n, ok := lens[c.ID]; c.MaxModelLen > 0 && (!ok || c.MaxModelLen < n) {
				lens[c.ID] = c.MaxModelLen
			}
		}
		r.mu.Unlock()
	}
	return lens
}

// adopt notes a proxy that this handler's requests go to.
func (h *Handler) adopt(s *Selection) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.proxies, s) {
		h.proxies = append(h.proxies, s)
	}
}

// serveHealth tells whether any replica behind this handler can take a request.
func (h *Handler) serveHealth(w http.ResponseWriter) {
	h.mu.Lock()
	proxies := slices.Clone(h.proxies)
	h.mu.Unlock()
	total, available := 0, 0
	for _, s := range proxies {
		for _, u := range s.lastPool() {
			total++
			if u.Available() {
				available++
			}
		}
	}
	status, text := http.StatusOK, "ok"
	if total > 0 && available == 0 {
		status, text = http.StatusServiceUnavailable, "no replica is available"
	}
	writeJSON(w, status, map[string]any{"status": text, "replicas": total, "available": available})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // only our own types come here
		openai.WriteError(w, http.StatusInternalServerError, "The answer could not be written.", "", "internal")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
