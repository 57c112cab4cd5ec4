package simulator

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/inferrail/inferrail/internal/openai"
)

// route is one path of the server.
type route struct {
	methods []string // the first one is named by 405's Allow header
	serve   func(*Simulator, http.ResponseWriter, *http.Request) error
}

// routes are the paths that the simulator knows, each exactly as written. /load is 0, as on a server without
// --enable-server-load-tracking; sleeping and pausing are not simulated.
var routes = map[string]route{
	"/v1/chat/completions": {[]string{http.MethodPost}, (*Simulator).serveChat},
	"/v1/completions":      {[]string{http.MethodPost}, (*Simulator).serveCompletion},
	"/v1/models":           {[]string{http.MethodGet}, (*Simulator).serveModels},
	"/health":              {[]string{http.MethodGet}, (*Simulator).serveHealth},
	"/ping":                {[]string{http.MethodGet, http.MethodPost}, (*Simulator).serveHealth},
	"/version":             {[]string{http.MethodGet}, constant(`{"version":"` + vllmVersion + `"}`)},
	"/load":                {[]string{http.MethodGet}, constant(`{"server_load":0}`)},
	"/metrics":             {[]string{http.MethodGet}, (*Simulator).serveMetrics},
	"/reset_prefix_cache":  {[]string{http.MethodPost}, (*Simulator).serveReset},
	"/reset_mm_cache":      {[]string{http.MethodPost}, (*Simulator).serveHealth},
	"/reset_encoder_cache": {[]string{http.MethodPost}, (*Simulator).serveHealth},
	"/is_sleeping":         {[]string{http.MethodGet}, constant(`{"is_sleeping":false}`)},
	"/is_paused":           {[]string{http.MethodGet}, constant(`{"is_paused":false}`)},
}

func (s *Simulator) route(w http.ResponseWriter, r *http.Request) error {
	if preflight(w, r) {
		return nil
	}
	path := r.URL.Path
	rt, ok := routes[path]
	if !ok {
		bare := strings.TrimSuffix(path, "/")
		if rt, ok = routes[bare]; !ok || bare == path {
			writeDetail(w, http.StatusNotFound, "Not Found")
			return nil
		}
		if bare != "/metrics" {
			redirect(w, r, bare)
			return nil
		}
	}
	if !slices.Contains(rt.methods, r.Method) {
		w.Header().Set("Allow", rt.methods[0])
		writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
		return nil
	}
	return rt.serve(s, w, r)
}

// preflight refuses CORS preflights, as a server without allowed origins does.
func preflight(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodOptions || r.Header.Get("Origin") == "" ||
		r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	const body = "Disallowed CORS origin"
	h := w.Header()
	h.Set("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers, "+
		"Access-Control-Request-Private-Network")
	h.Set("Access-Control-Allow-Methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY")
	h.Set("Access-Control-Max-Age", "600")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusBadRequest)
	_, _ = w.Write([]byte(body)) // the client may be gone
	return true
}

// redirect sends a path with a slash at its end to the one without.
func redirect(w http.ResponseWriter, r *http.Request, path string) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	target := scheme + "://" + r.Host + path
	if r.URL.RawQuery != "" {
		target += "?" + r.URL.RawQuery
	}
	w.Header().Set("Location", target)
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// serveHealth answers 200 without a body.
func (s *Simulator) serveHealth(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

// constant answers with the same body always.
func constant(body string) func(*Simulator, http.ResponseWriter, *http.Request) error {
	return func(_ *Simulator, w http.ResponseWriter, _ *http.Request) error {
		writeJSON(w, http.StatusOK, []byte(body))
		return nil
	}
}

func (s *Simulator) serveReset(w http.ResponseWriter, _ *http.Request) error {
	body := `{"success":false}`
	if s.engine.driver.resetPrefixCache() {
		body = `{"success":true}`
	}
	writeJSON(w, http.StatusOK, []byte(body))
	return nil
}

func (s *Simulator) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	h := w.Header()
	body := s.metricsPage(s.engine.stats)
	h.Set("Content-Type", "text/plain; version=1.0.0; charset=utf-8")
	if strings.HasSuffix(r.URL.Path, "/") {
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	} else {
		h.Set("Content-Length", strconv.Itoa(len(body)))
	}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // the client may be gone
	return nil
}

func (s *Simulator) serveModels(w http.ResponseWriter, _ *http.Request) error {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	b := []byte(`{"object":"list","data":[`)
	for i, name := range s.ServedModelName {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = openai.AppendString(b, name)
		b = append(b, `,"object":"model","created":`+now+`,"owned_by":"vllm","root":`...)
		b = openai.AppendString(b, s.Model)
		b = append(b, `,"parent":null,"max_model_len":`...)
		b = strconv.AppendInt(b, int64(s.MaxModelLen), 10)
		b = append(b, `,"permission":[{"id":"modelperm-`+randomID()+`","object":"model_permission","created":`+now+
			`,"allow_create_engine":false,"allow_sampling":true,"allow_logprobs":true,"allow_search_indices":false,`+
			`"allow_view":true,"allow_fine_tuning":false,"organization":"*","group":null,"is_blocking":false}]}`...)
	}
	writeJSON(w, http.StatusOK, append(b, "]}"...))
	return nil
}
