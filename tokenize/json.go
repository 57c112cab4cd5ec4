package tokenize

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Request bodies are read with the rules of Python's json.loads, as vLLM's
// server does: keys match exactly, the last of equal keys wins but keeps the
// first one's place, NaN and Infinity are numbers, numbers keep their digits.

// Limits on what is decoded of a body. A value costs up to some 100 bytes, so
// that the tree of a hostile body stays near 50 MB.
const (
	maxDepth  = 256     // Python's own limit, near 1,000, differs between versions
	maxValues = 1 << 19 // decoded values in one document
)

type kind uint8

const (
	kindMissing kind = iota // the zero value: no such key
	kindNull
	kindFalse
	kindTrue
	kindNumber
	kindString
	kindArray
	kindObject
)

// value is a decoded JSON value. Strings without escapes share the memory of
// the document.
type value struct {
	kind kind
	text string      // a string's contents, or a number as written
	c    *collection // of an array or object
}

// collection holds an array's elements, or an object's members in the order
// of a Python dict.
type collection struct {
	keys   []string // objects only
	values []value
	raw    string // the JSON as written
}

// get returns the member key of an object, or the zero value.
func (v value) get(key string) value {
	if v.kind == kindObject {
		for i, k := range v.c.keys {
			if k == key {
				return v.c.values[i]
			}
		}
	}
	return value{}
}

// absent says whether the value is missing or null.
func (v value) absent() bool { return v.kind <= kindNull }

// decoder reads one JSON document. Its errors are [InvalidError] or, past the
// limits, [UnsupportedError] with reason "size".
type decoder struct {
	s      string
	i      int
	values int
	// surrogate is set when a decoded string held a lone surrogate, which
	// Python accepts and no tokenizer does.
	surrogate bool
}

// newDecoder checks the encoding of a body. Python detects UTF-16 and UTF-32 by
// zero bytes and byte order marks; those are refused, as is a UTF-8 mark.
func newDecoder(body []byte) (*decoder, error) {
	mark := len(body) >= 2 && (body[0] >= 0xfe && body[1] >= 0xfe || body[0] == 0xef && body[1] == 0xbb)
	if mark || bytes.IndexByte(body[:min(len(body), 4)], 0) >= 0 {
		return nil, unsupported(ReasonEncoding, "the body is not plain UTF-8")
	}
	if !utf8.Valid(body) {
		return nil, invalid("the body is not UTF-8")
	}
	return &decoder{s: string(body)}, nil
}

func (d *decoder) errorf(what string) error {
	return invalid("malformed JSON at byte %d: %s", d.i, what)
}

func (d *decoder) space() {
	for d.i < len(d.s) {
		switch d.s[d.i] {
		case ' ', '\t', '\n', '\r':
			d.i++
		default:
			return
		}
	}
}

// end checks that nothing but space follows.
func (d *decoder) end() error {
	if d.space(); d.i < len(d.s) {
		return d.errorf("more than one value")
	}
	return nil
}

// document decodes the whole document.
func (d *decoder) document() (value, error) {
	v, err := d.value(0)
	if err != nil {
		return v, err
	}
	return v, d.end()
}

// fields calls field for every member of the document, which must be an
// object. field consumes the member's value.
func (d *decoder) fields(field func(key string) error) error {
	d.space()
	if d.i >= len(d.s) || d.s[d.i] != '{' {
		if _, err := d.document(); err != nil {
			return err
		}
		return invalid("the body is not a JSON object")
	}
	err := d.members(func() error {
		key, err := d.str()
		if err != nil {
			return err
		}
		if err := d.colon(); err != nil {
			return err
		}
		return field(key)
	}, '}')
	if err != nil {
		return err
	}
	return d.end()
}

// members reads the comma-separated items of an array or object, from its
// opening to its closing bracket.
func (d *decoder) members(item func() error, closing byte) error {
	d.i++
	if d.space(); d.i < len(d.s) && d.s[d.i] == closing {
		d.i++
		return nil
	}
	for {
		d.space()
		if err := item(); err != nil {
			return err
		}
		d.space()
		switch {
		case d.i < len(d.s) && d.s[d.i] == ',':
			d.i++
		case d.i < len(d.s) && d.s[d.i] == closing:
			d.i++
			return nil
		default:
			return d.errorf("a comma or a closing bracket is missing")
		}
	}
}

func (d *decoder) colon() error {
	if d.space(); d.i >= len(d.s) || d.s[d.i] != ':' {
		return d.errorf("a colon is missing")
	}
	d.i++
	d.space()
	return nil
}

// value decodes the value at the cursor.
func (d *decoder) value(depth int) (value, error) {
	if d.values++; d.values > maxValues {
		return value{}, unsupported(ReasonSize, "more than %d JSON values", maxValues)
	}
	if depth > maxDepth {
		return value{}, unsupported(ReasonSize, "nested deeper than %d levels", maxDepth)
	}
	d.space()
	if d.i >= len(d.s) {
		return value{}, d.errorf("a value is missing")
	}
	switch d.s[d.i] {
	case '"':
		s, err := d.str()
		return value{kind: kindString, text: s}, err
	case '[':
		return d.array(depth)
	case '{':
		return d.object(depth)
	}
	return d.scalar()
}

func (d *decoder) array(depth int) (value, error) {
	start, c := d.i, &collection{}
	err := d.members(func() error {
		v, err := d.value(depth + 1)
		c.values = append(c.values, v)
		return err
	}, ']')
	c.raw = d.s[start:d.i]
	return value{kind: kindArray, c: c}, err
}

func (d *decoder) object(depth int) (value, error) {
	start, c := d.i, &collection{}
	var places map[string]int // only for many members
	err := d.members(func() error {
		key, err := d.str()
		if err != nil {
			return err
		}
		if err := d.colon(); err != nil {
			return err
		}
		v, err := d.value(depth + 1)
		if err != nil {
			return err
		}
		places = c.set(places, key, v)
		return nil
	}, '}')
	c.raw = d.s[start:d.i]
	return value{kind: kindObject, c: c}, err
}

// set adds a member, or replaces the value of an equal key. places indexes the
// keys once a linear search would be slow.
func (c *collection) set(places map[string]int, key string, v value) map[string]int {
	if places == nil && len(c.keys) >= 16 {
		places = make(map[string]int, 2*len(c.keys))
		for i, k := range c.keys {
			places[k] = i
		}
	}
	at := -1
	if places != nil {
		if i, ok := places[key]; ok {
			at = i
		}
	} else {
		for i, k := range c.keys {
			if k == key {
				at = i
			}
		}
	}
	if at >= 0 {
		c.values[at] = v
		return places
	}
	c.keys, c.values = append(c.keys, key), append(c.values, v)
	if places != nil {
		places[key] = len(c.keys) - 1
	}
	return places
}

// skip passes over the value at the cursor, checking its syntax.
func (d *decoder) skip(depth int) error {
	if depth > maxDepth {
		return unsupported(ReasonSize, "nested deeper than %d levels", maxDepth)
	}
	d.space()
	if d.i >= len(d.s) {
		return d.errorf("a value is missing")
	}
	switch d.s[d.i] {
	case '"':
		_, _, err := d.span()
		return err
	case '[':
		return d.members(func() error { return d.skip(depth + 1) }, ']')
	case '{':
		return d.members(func() error {
			if d.i >= len(d.s) || d.s[d.i] != '"' {
				return d.errorf("a key is missing")
			}
			if _, _, err := d.span(); err != nil {
				return err
			}
			if err := d.colon(); err != nil {
				return err
			}
			return d.skip(depth + 1)
		}, '}')
	}
	_, err := d.scalar()
	return err
}

// lax reads a bool as pydantic's lax mode does; null is not a bool.
func (v value) lax() (b, ok bool) {
	switch v.kind {
	case kindTrue:
		return true, true
	case kindFalse:
		return false, true
	case kindNumber:
		f, err := strconv.ParseFloat(v.text, 64)
		return f == 1, err == nil && (f == 0 || f == 1)
	case kindString:
		switch strings.ToLower(v.text) {
		case "1", "on", "t", "true", "y", "yes":
			return true, true
		case "0", "off", "f", "false", "n", "no":
			return false, true
		}
	}
	return false, false
}

// integer reads an integer as pydantic's lax mode does.
func (v value) integer() (n int64, ok bool) {
	if v.kind != kindNumber && v.kind != kindString {
		return 0, false
	}
	if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(v.text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}
