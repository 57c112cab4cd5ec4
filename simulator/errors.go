package simulator

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/inferrail/inferrail/internal/openai"
)

// apiError is a refused request in vLLM's error shape (entrypoints/openai/engine/protocol.py, ErrorResponse).
type apiError struct {
	status  int
	typ     string
	message string
	param   string // empty: null
}

func (e *apiError) Error() string { return e.message }

func (e *apiError) body() []byte {
	b := append([]byte(nil), `{"error":{"message":`...)
	b = openai.AppendString(b, e.message)
	b = append(b, `,"type":`...)
	b = openai.AppendString(b, e.typ)
	b = append(b, `,"param":`...)
	if e.param == "" {
		b = append(b, "null"...)
	} else {
		b = openai.AppendString(b, e.param)
	}
	b = append(b, `,"code":`...)
	b = strconv.AppendInt(b, int64(e.status), 10)
	return append(b, "}}"...)
}

// badRequest is a request refused after its shape was checked, without a parameter: a Python ValueError.
func badRequest(message string) error {
	return &apiError{http.StatusBadRequest, "BadRequestError", message, ""}
}

// badParam is a VLLMValidationError that names a parameter but no value.
func badParam(message, param string) error {
	return &apiError{http.StatusBadRequest, "BadRequestError", message + " (parameter=" + param + ")", param}
}

// badValue is a VLLMValidationError that names a parameter and its value.
func badValue(message, param, value string) error {
	return &apiError{
		http.StatusBadRequest, "BadRequestError",
		message + " (parameter=" + param + ", value=" + value + ")", param,
	}
}

// notSimulated refuses what vLLM serves and this mock does not.
func notSimulated(param string) error {
	return badParam("`"+param+"` is not supported by the simulator.", param)
}

// fieldError is one fault that pydantic found in a body.
type fieldError struct {
	typ, loc, msg, input string
	ctx                  string // Python repr of the context dict, braces included; empty: none
}

// maxFieldErrors is how many faults vLLM lists before it only counts the rest.
const maxFieldErrors = 10

// faults collects what pydantic finds wrong with a body. Only the first ones are kept, so that a body of a million
// wrong items costs no more than one of ten.
type faults struct {
	first []fieldError
	n     int
}

func (f *faults) add(e fieldError) {
	f.n++
	if len(f.first) < maxFieldErrors {
		f.first = append(f.first, e)
	}
}

// err renders the faults as vLLM's exception handler does (entrypoints/serve/utils/server_utils.py,
// validation_exception_handler); nil when there are none.
func (f *faults) err() error {
	if f.n == 0 {
		return nil
	}
	var b strings.Builder
	b.WriteString(strconv.Itoa(f.n))
	if f.n == 1 {
		b.WriteString(" validation error:")
	} else {
		b.WriteString(" validation errors:")
	}
	for _, e := range f.first {
		b.WriteString("\n  {'type': " + pyRepr(e.typ) + ", 'loc': " + pyRepr(e.loc) + ", 'msg': " + pyRepr(e.msg) +
			", 'input': " + pyRepr(e.input))
		if e.ctx != "" {
			b.WriteString(", 'ctx': " + e.ctx)
		}
		b.WriteByte('}')
	}
	if f.n > len(f.first) {
		b.WriteString("\n  ...and " + strconv.Itoa(f.n-len(f.first)) + " more errors")
	}
	return &apiError{http.StatusBadRequest, "Bad Request", b.String(), f.first[0].loc}
}

func oneFault(e fieldError) error {
	var f faults
	f.add(e)
	return f.err()
}

// bodyError turns a failure of parseBody into the answer.
func bodyError(err error) error {
	if e := (*jsonError)(nil); errors.As(err, &e) {
		return oneFault(fieldError{
			typ: "json_invalid", loc: "body." + strconv.Itoa(e.offset), msg: "JSON decode error",
			input: "<dict of 0 items>", ctx: "{'error': " + pyRepr(e.msg) + "}",
		})
	}
	return err
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeJSON(w, status, append(openai.AppendString([]byte(`{"detail":`), detail), '}'))
}

// writeFault answers with the shape that belongs to err.
func writeFault(w http.ResponseWriter, err error) {
	var api *apiError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &api):
		writeJSON(w, api.status, api.body())
	case errors.As(err, &tooLarge):
		writeDetail(w, http.StatusRequestEntityTooLarge, "Request body is too large")
	default:
		writeDetail(w, http.StatusBadRequest, "There was an error parsing the body")
	}
}
