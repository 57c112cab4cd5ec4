package caddymodule

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxOutputText bounds the generated text that is held while a response passes. A longer one is not followed: its blocks
// are then of unknown content to the index.
const maxOutputText = 1 << 20

// outputText collects the generated text of a response that comes in arbitrary pieces: the strings behind the keys
// "content" and "text". Generated text cannot spell these keys, since every quote inside a string is escaped. The text is
// dropped with the response; the index keeps hashes of its tokens.
type outputText struct {
	text   []byte
	over   bool // longer than maxOutputText, or not what was expected
	inside bool
	carry  []byte // the end of what was written, when a key or an escape may go on
}

var textKeys = [][]byte{[]byte(`"content":`), []byte(`"text":`)}

// longestKey is how much of a piece without a key may belong to one that goes on.
const longestKey = len(`"content": "`)

func (o *outputText) write(p []byte) {
	if o.over {
		return
	}
	data := p
	if len(o.carry) > 0 {
		o.carry = append(o.carry, p...)
		data = o.carry
	}
	for len(data) > 0 {
		var rest []byte
		var more bool
		if o.inside {
			rest, more = o.readString(data)
		} else {
			rest, more = o.findKey(data)
		}
		data = rest
		if more {
			break
		}
	}
	o.carry = append(o.carry[:0], data...)
	if len(o.text) > maxOutputText {
		*o = outputText{over: true}
	}
}

// findKey looks for the start of a string of text; more tells that rest must wait for what follows.
func (o *outputText) findKey(data []byte) (rest []byte, more bool) {
	at, key := -1, []byte(nil)
	for _, k := range textKeys {
		if i := bytes.Index(data, k); i >= 0 && (at < 0 || i < at) {
			at, key = i, k
		}
	}
	if at < 0 {
		return data[max(0, len(data)-longestKey):], true
	}
	value := data[at+len(key):]
	space := 0
	if len(value) > 0 && value[0] == ' ' {
		space = 1
	}
	if len(value) <= space {
		return data[at:], true
	}
	if value[space] == '"' {
		o.inside = true
		space++
	}
	return value[space:], false
}

// readString reads a string up to its closing quote.
func (o *outputText) readString(data []byte) (rest []byte, more bool) {
	i := bytes.IndexAny(data, `"\`)
	if i < 0 {
		o.text = append(o.text, data...)
		return nil, true
	}
	o.text = append(o.text, data[:i]...)
	if data[i] == '"' {
		o.inside = false
		return data[i+1:], false
	}
	return o.readEscape(data[i:])
}

// shortEscapes are the escapes of one letter and what they stand for.
var shortEscapes = map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// readEscape reads the escape that data begins with, both halves of a surrogate pair at once.
func (o *outputText) readEscape(data []byte) (rest []byte, more bool) {
	if len(data) < 2 {
		return data, true
	}
	if c, ok := shortEscapes[data[1]]; ok {
		o.text = append(o.text, c)
		return data[2:], false
	}
	if data[1] == 'u' && len(data) < 6 {
		return data, true
	}
	first, ok := rune(0), data[1] == 'u'
	if ok {
		first, ok = hexEscape(data)
	}
	if !ok { // not JSON
		*o = outputText{over: true}
		return nil, true
	}
	if !utf16.IsSurrogate(first) {
		o.text = utf8.AppendRune(o.text, first)
		return data[6:], false
	}
	// The other half must follow at once; a lone one stands for U+FFFD.
	if mayBeEscape(data[6:]) {
		return data, true
	}
	second, ok := hexEscape(data[6:])
	r := utf16.DecodeRune(first, second)
	o.text = utf8.AppendRune(o.text, r)
	if !ok || r == utf8.RuneError {
		return data[6:], false
	}
	return data[12:], false
}

// mayBeEscape tells whether data is the beginning of an escape of hexadecimal digits, whose end is yet to come.
func mayBeEscape(data []byte) bool {
	switch len(data) {
	case 0:
		return true
	case 1:
		return data[0] == '\\'
	}
	return len(data) < 6 && data[0] == '\\' && data[1] == 'u'
}

func hexEscape(data []byte) (rune, bool) {
	if len(data) < 6 || data[0] != '\\' || data[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(data[2:6]), 16, 16)
	return rune(v), err == nil
}
