package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// MaxDepth is how deeply arrays and objects may nest in a request. Python's json.loads, which the engines use, gives up
// far earlier than this.
const MaxDepth = 10_000

// Span is a half-open range of byte offsets in a body.
type Span struct{ Start, End int }

// Fields are the top-level members of a request body that a router looks at. Where a key stands twice the last one
// counts, as in Python's json.loads; the other members are validated and passed over.
type Fields struct {
	// Model is the requested model; ModelSpan is where its value stands, quotes included, and is empty when the
	// member is missing. A null model counts as missing, as vLLM takes it.
	Model     string
	ModelSpan Span
	// ModelInvalid is set when model is neither a string nor null.
	ModelInvalid bool
	// Stream is set when the response is to be streamed.
	Stream bool
	// MaxTokens is max_completion_tokens, else max_tokens; 0 when neither is a positive integer.
	MaxTokens int
	// CacheSalt and User are the members cache_salt and user when they are strings.
	CacheSalt string
	User      string
}

// SyntaxError says where a body stops being JSON.
type SyntaxError struct {
	Offset int    // byte offset in the body
	Reason string // what was wrong there
}

// Error describes the fault and its place.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Reason, e.Offset) }

// ErrNotObject is returned for a body that is JSON but not an object.
var ErrNotObject = errors.New("the request body must be a JSON object")

// Scan validates body as JSON in one pass and finds the fields that routing needs. It accepts what Python's json.loads
// accepts of UTF-8 input: a byte order mark in front, NaN and Infinity. It allocates only for strings with escapes and
// the strings it returns. The error is a *SyntaxError or ErrNotObject.
func Scan(body []byte) (Fields, error) {
	var f Fields
	if !utf8.Valid(body) {
		return f, &SyntaxError{invalidUTF8At(body), "invalid UTF-8"}
	}
	s := scanner{buf: body}
	if bytes.HasPrefix(body, []byte("\xef\xbb\xbf")) {
		s.pos = 3
	}
	s.space()
	if s.peek() != '{' {
		if err := s.value(); err != nil {
			return f, err
		}
		if err := s.end(); err != nil {
			return f, err
		}
		return f, ErrNotObject
	}
	var maxTokens, maxCompletion int
	err := s.members(func(key []byte, v Span) {
		raw := body[v.Start:v.End]
		switch string(key) {
		case "model":
			f.Model, f.ModelSpan, f.ModelInvalid = "", v, false
			switch {
			case raw[0] == '"':
				f.Model = unquote(raw)
			case string(raw) == "null":
				f.ModelSpan = Span{}
			default:
				f.ModelInvalid = true
			}
		case "stream":
			f.Stream = truthy(raw)
		case "max_tokens":
			maxTokens = positive(raw)
		case "max_completion_tokens":
			maxCompletion = positive(raw)
		case "cache_salt":
			f.CacheSalt = stringOrEmpty(raw)
		case "user":
			f.User = stringOrEmpty(raw)
		}
	})
	if err != nil {
		return f, err
	}
	f.MaxTokens = maxTokens
	if maxCompletion > 0 {
		f.MaxTokens = maxCompletion
	}
	return f, s.end()
}

// ReplaceModel returns body with the value of model replaced by name; no other byte differs. body is not modified.
func ReplaceModel(body []byte, f Fields, name string) []byte {
	if f.ModelSpan.End == 0 {
		return body
	}
	quoted, _ := json.Marshal(name) // a string always marshals
	out := make([]byte, 0, len(body)+len(quoted))
	out = append(out, body[:f.ModelSpan.Start]...)
	out = append(out, quoted...)
	return append(out, body[f.ModelSpan.End:]...)
}

// truthy reads a boolean the way pydantic's lax mode does.
func truthy(raw []byte) bool {
	switch string(bytes.ToLower(bytes.Trim(raw, `"`))) {
	case "true", "1", "1.0", "on", "t", "y", "yes":
		return true
	}
	return false
}

func positive(raw []byte) int {
	n, err := strconv.Atoi(string(bytes.Trim(raw, `"`)))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func stringOrEmpty(raw []byte) string {
	if raw[0] != '"' {
		return ""
	}
	return unquote(raw)
}

// unquote decodes a validated JSON string.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s) // raw was validated by the scanner
	return s
}

func invalidUTF8At(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// scanner is a non-recursive JSON validator: nesting is kept as one bit a level, so that a hostile body costs no stack.
type scanner struct {
	buf   []byte
	pos   int
	depth int
	isObj [MaxDepth/64 + 1]uint64
}

func (s *scanner) fail(reason string) error { return &SyntaxError{s.pos, reason} }

func (s *scanner) peek() byte {
	if s.pos < len(s.buf) {
		return s.buf[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	for s.pos < len(s.buf) {
		switch s.buf[s.pos] {
		case ' ', '\n', '\r', '\t':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) end() error {
	s.space()
	if s.pos != len(s.buf) {
		return s.fail("unexpected data after the JSON value")
	}
	return nil
}

// members reads the object at pos and calls visit for each of its members.
func (s *scanner) members(visit func(key []byte, value Span)) error {
	s.pos++ // the opening brace
	s.space()
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		key, err := s.key()
		if err != nil {
			return err
		}
		start := s.pos
		if err := s.value(); err != nil {
			return err
		}
		visit(key, Span{start, s.pos})
		s.space()
		switch s.peek() {
		case ',':
			s.pos++
			s.space()
		case '}':
			s.pos++
			return nil
		default:
			return s.fail("expected a comma or a closing brace")
		}
	}
}

// key reads a member's name, the colon and the space around it, and returns the decoded name.
func (s *scanner) key() ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.fail("expected a member name in double quotes")
	}
	start := s.pos
	if err := s.str(); err != nil {
		return nil, err
	}
	raw := s.buf[start:s.pos]
	s.space()
	if s.peek() != ':' {
		return nil, s.fail("expected a colon")
	}
	s.pos++
	s.space()
	if bytes.IndexByte(raw, '\\') >= 0 {
		return []byte(unquote(raw)), nil
	}
	return raw[1 : len(raw)-1], nil
}

// value validates one value and leaves pos behind it.
func (s *scanner) value() error {
	base := s.depth
	for {
		opened, err := s.open()
		if err != nil {
			return err
		}
		if opened {
			continue
		}
		more, err := s.close(base)
		if err != nil || !more {
			return err
		}
	}
}

// open reads the start of a value: a scalar whole, or the bracket of a container that is not empty (opened).
func (s *scanner) open() (opened bool, err error) {
	s.space()
	switch c := s.peek(); c {
	case '{', '[':
		s.pos++
		s.space()
		if s.peek() == c+2 { // the closing bracket of the same kind in ASCII
			s.pos++
			return false, nil
		}
		if s.depth == MaxDepth {
			return false, s.fail("nested too deeply")
		}
		s.depth++
		s.setObject(c == '{')
		if c == '{' {
			_, err = s.key()
		}
		return true, err
	case '"':
		return false, s.str()
	default:
		return false, s.scalar()
	}
}

// close reads what follows a finished value: the closing brackets down to base, or the comma before the next value (more).
func (s *scanner) close(base int) (more bool, err error) {
	for s.depth > base {
		s.space()
		object := s.object()
		switch c := s.peek(); {
		case c == ',':
			s.pos++
			s.space()
			if object {
				_, err = s.key()
			}
			return true, err
		case c == '}' && object, c == ']' && !object:
			s.pos++
			s.depth--
		default:
			return false, s.fail("expected a comma or a closing bracket")
		}
	}
	return false, nil
}

func (s *scanner) setObject(object bool) {
	word, bit := s.depth/64, uint64(1)<<(s.depth%64)
	if object {
		s.isObj[word] |= bit
	} else {
		s.isObj[word] &^= bit
	}
}

func (s *scanner) object() bool { return s.isObj[s.depth/64]&(1<<(s.depth%64)) != 0 }

// str validates the string at pos. It looks for the next quote only once the last one found is behind it, so that many
// escapes cost no more than as many letters.
func (s *scanner) str() error {
	s.pos++
	for quote := -1; ; {
		if quote < s.pos {
			i := bytes.IndexByte(s.buf[s.pos:], '"')
			if i < 0 {
				s.pos = len(s.buf)
				return s.fail("unterminated string")
			}
			quote = s.pos + i
		}
		run, escaped := s.buf[s.pos:quote], false
		if j := bytes.IndexByte(run, '\\'); j >= 0 {
			run, escaped = run[:j], true
		}
		for k, c := range run {
			if c < 0x20 {
				s.pos += k
				return s.fail("control character in a string")
			}
		}
		s.pos += len(run)
		if !escaped {
			s.pos++
			return nil
		}
		if err := s.escape(); err != nil {
			return err
		}
	}
}

// escape validates the escape sequence at pos.
func (s *scanner) escape() error {
	if s.pos+1 >= len(s.buf) {
		return s.fail("unterminated escape")
	}
	switch s.buf[s.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return nil
	case 'u':
		if s.pos+6 > len(s.buf) {
			return s.fail("unterminated escape")
		}
		for _, c := range s.buf[s.pos+2 : s.pos+6] {
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F') {
				return s.fail("invalid \\u escape")
			}
		}
		s.pos += 6
		return nil
	}
	return s.fail("invalid escape")
}

// scalar validates a number or one of the literals.
func (s *scanner) scalar() error {
	rest := s.buf[s.pos:]
	for _, lit := range [...]string{"true", "false", "null", "NaN", "Infinity", "-Infinity"} {
		if len(rest) >= len(lit) && string(rest[:len(lit)]) == lit {
			s.pos += len(lit)
			return nil
		}
	}
	i := 0
	digits := func() bool {
		from := i
		for i < len(rest) && rest[i] >= '0' && rest[i] <= '9' {
			i++
		}
		return i > from
	}
	if i < len(rest) && rest[i] == '-' {
		i++
	}
	if i < len(rest) && rest[i] == '0' {
		i++
	} else if !digits() {
		if len(rest) == 0 {
			return s.fail("unexpected end")
		}
		return s.fail("expected a value")
	}
	if i < len(rest) && rest[i] == '.' {
		i++
		if !digits() {
			return s.fail("invalid number")
		}
	}
	if i < len(rest) && (rest[i] == 'e' || rest[i] == 'E') {
		i++
		if i < len(rest) && (rest[i] == '+' || rest[i] == '-') {
			i++
		}
		if !digits() {
			return s.fail("invalid number")
		}
	}
	s.pos += i
	return nil
}
