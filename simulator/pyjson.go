package simulator

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// This file reads request bodies as vLLM's server does: Python 3.12's json.loads, whose errors (texts and offsets in
// characters) reach the client, and which takes NaN and Infinity, a byte order mark and duplicate keys.

// maxJSONDepth is how deep arrays and objects may nest. CPython 3.12's C recursion limit makes json.loads fail
// somewhere between 500 and 5000 levels.
const maxJSONDepth = 1490

// maxIntDigits is CPython's limit on converting a decimal string to an int (sys.int_info.default_max_str_digits).
const maxIntDigits = 4300

// maxMembers bounds the memory that a dict of many small members takes; json.loads has no such limit.
const maxMembers = 10_000

// kind is the Python type a JSON value becomes.
type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindInt
	kindFloat
	kindString
	kindList
	kindDict
)

// value is one JSON value, not decoded: raw is a part of the body.
type value struct {
	kind kind
	raw  []byte
	n    int // items of a list or dict
}

// member is one member of the top-level object.
type member struct {
	value
	from, to int // key and value in the body
}

// object is a request body: a JSON object's members by name, the last one of equal keys.
type object struct {
	body    []byte
	members map[string]member
}

// jsonError is Python's JSONDecodeError; offset counts characters.
type jsonError struct {
	msg    string
	offset int
}

func (e *jsonError) Error() string { return e.msg + " at " + strconv.Itoa(e.offset) }

// errBody stands for any other failure to read a body (not UTF-8, nested too deep): the server answers
// "There was an error parsing the body".
type errBody struct{}

func (errBody) Error() string { return "there was an error parsing the body" }

// parseBody reads a body. The value is the whole body; object is set when it is a dict.
func parseBody(body []byte) (value, object, error) {
	if !utf8.Valid(body) {
		return value{}, object{}, errBody{}
	}
	body = bytes.TrimPrefix(body, []byte("\xef\xbb\xbf"))
	p := pyParser{buf: body}
	p.space()
	obj := object{body: body}
	p.object = &obj
	v, err := p.value(0)
	if err == nil {
		p.space()
		if p.pos < len(p.buf) {
			err = p.fail("Extra data", p.pos)
		}
	}
	return v, obj, err
}

// pyParser scans JSON in one pass, without recursion beyond maxJSONDepth and without decoding.
type pyParser struct {
	buf    []byte
	pos    int
	object *object // collects the members of a top-level dict
}

func (p *pyParser) fail(msg string, at int) error {
	return &jsonError{msg, utf8.RuneCount(p.buf[:min(at, len(p.buf))])}
}

func (p *pyParser) space() {
	for p.pos < len(p.buf) {
		switch p.buf[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *pyParser) at(c byte) bool { return p.pos < len(p.buf) && p.buf[p.pos] == c }

func (p *pyParser) value(depth int) (value, error) {
	if depth > maxJSONDepth {
		return value{}, errBody{}
	}
	start := p.pos
	v := value{}
	var err error
	switch {
	case p.pos >= len(p.buf):
		return v, p.fail("Expecting value", start)
	case p.buf[p.pos] == '"':
		v.kind, err = kindString, p.str()
	case p.buf[p.pos] == '{':
		v.kind = kindDict
		v.n, err = p.dict(depth)
	case p.buf[p.pos] == '[':
		v.kind = kindList
		v.n, err = p.list(depth)
	case p.word("null"):
		v.kind = kindNull
	case p.word("true"), p.word("false"):
		v.kind = kindBool
	case p.word("NaN"), p.word("Infinity"), p.word("-Infinity"):
		v.kind = kindFloat
	default:
		v.kind, err = p.number()
	}
	v.raw = p.buf[start:p.pos]
	return v, err
}

func (p *pyParser) word(w string) bool {
	if bytes.HasPrefix(p.buf[p.pos:], []byte(w)) {
		p.pos += len(w)
		return true
	}
	return false
}

func (p *pyParser) digits() int {
	start := p.pos
	for p.pos < len(p.buf) && p.buf[p.pos] >= '0' && p.buf[p.pos] <= '9' {
		p.pos++
	}
	return p.pos - start
}

func (p *pyParser) number() (kind, error) {
	start := p.pos
	if p.at('-') {
		p.pos++
	}
	digits := 1
	if p.at('0') {
		p.pos++
	} else if digits = p.digits(); digits == 0 {
		p.pos = start
		return kindInt, p.fail("Expecting value", start)
	}
	isFloat := false
	if end := p.pos; p.at('.') {
		p.pos++
		if p.digits() == 0 {
			p.pos = end
		} else {
			isFloat = true
		}
	}
	if end := p.pos; p.at('e') || p.at('E') {
		p.pos++
		if p.at('+') || p.at('-') {
			p.pos++
		}
		if p.digits() == 0 {
			p.pos = end
		} else {
			isFloat = true
		}
	}
	if isFloat {
		return kindFloat, nil
	}
	if digits > maxIntDigits {
		return kindInt, errBody{}
	}
	return kindInt, nil
}

// str passes over a string; offsets of errors as in CPython's Modules/_json.c, scanstring_unicode.
func (p *pyParser) str() error {
	begin := p.pos
	p.pos++
	for p.pos < len(p.buf) {
		switch c := p.buf[p.pos]; {
		case c == '"':
			p.pos++
			return nil
		case c < ' ':
			return p.fail("Invalid control character at", p.pos)
		case c != '\\':
			p.pos++
		default:
			if p.pos+1 >= len(p.buf) {
				return p.fail("Unterminated string starting at", begin)
			}
			if err := p.escape(); err != nil {
				return err
			}
		}
	}
	return p.fail("Unterminated string starting at", begin)
}

func (p *pyParser) escape() error {
	switch p.buf[p.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		p.pos += 2
		return nil
	case 'u':
		if p.pos+6 >= len(p.buf) {
			return p.fail("Invalid \\uXXXX escape", p.pos+1)
		}
		for _, c := range p.buf[p.pos+2 : p.pos+6] {
			if !isHex(c) {
				return p.fail("Invalid \\uXXXX escape", p.pos+1)
			}
		}
		p.pos += 6
		return nil
	default:
		return p.fail("Invalid \\escape", p.pos)
	}
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func (p *pyParser) list(depth int) (int, error) {
	p.pos++
	p.space()
	if p.at(']') {
		p.pos++
		return 0, nil
	}
	for n := 1; ; n++ {
		if _, err := p.value(depth + 1); err != nil {
			return n, err
		}
		p.space()
		if p.at(']') {
			p.pos++
			return n, nil
		}
		if !p.at(',') {
			return n, p.fail("Expecting ',' delimiter", p.pos)
		}
		p.pos++
		p.space()
	}
}

func (p *pyParser) dict(depth int) (int, error) {
	p.pos++
	p.space()
	top := depth == 0
	if top {
		p.object.members = make(map[string]member)
	}
	if p.at('}') {
		p.pos++
		return 0, nil
	}
	for n := 1; ; n++ {
		if !p.at('"') {
			return n, p.fail("Expecting property name enclosed in double quotes", p.pos)
		}
		from := p.pos
		if err := p.str(); err != nil {
			return n, err
		}
		key := p.buf[from:p.pos]
		p.space()
		if !p.at(':') {
			return n, p.fail("Expecting ':' delimiter", p.pos)
		}
		p.pos++
		p.space()
		v, err := p.value(depth + 1)
		if err != nil {
			return n, err
		}
		if top {
			if len(p.object.members) >= maxMembers {
				return n, errBody{}
			}
			p.object.members[decodeString(key)] = member{v, from, p.pos}
			n = len(p.object.members)
		}
		p.space()
		if p.at('}') {
			p.pos++
			return n, nil
		}
		if !p.at(',') {
			return n, p.fail("Expecting ',' delimiter", p.pos)
		}
		p.pos++
		p.space()
	}
}
