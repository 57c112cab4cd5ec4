package openai

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// Error is the error object of the OpenAI API.
type Error struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    any     `json:"code"`
}

// ErrorBody renders an error as OpenAI's API and vLLM do: {"error":{"message","type","param","code"}}. The type follows
// from the status; code is a machine-readable reason. An empty param is rendered as null.
func ErrorBody(status int, message, param, code string) []byte {
	e := Error{Message: message, Type: errorType(status), Code: code}
	if param != "" {
		e.Param = &param
	}
	b, _ := json.Marshal(struct { // strings always marshal
		Error Error `json:"error"`
	}{e})
	return b
}

// WriteError answers a request with an error body. It is for responses that have not begun.
func WriteError(w http.ResponseWriter, status int, message, param, code string) {
	body := ErrorBody(status, message, param, code)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Del("Content-Encoding")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func errorType(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}
