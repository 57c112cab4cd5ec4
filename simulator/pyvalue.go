package simulator

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// items calls f with each item of a list value, until f returns false. raw was scanned before, so it cannot fail.
func (v value) items(f func(value) bool) {
	if v.kind != kindList || v.n == 0 {
		return
	}
	p := pyParser{buf: v.raw, pos: 1}
	for {
		p.space()
		item, err := p.value(1)
		if err != nil || !f(item) {
			return
		}
		p.space()
		if !p.at(',') {
			return
		}
		p.pos++
	}
}

// dict decodes the members of a dict value.
func (v value) dict() map[string]value {
	if v.kind != kindDict {
		return nil
	}
	obj := object{}
	p := pyParser{buf: v.raw, object: &obj}
	if _, err := p.dict(0); err != nil {
		return nil
	}
	out := make(map[string]value, len(obj.members))
	for k, m := range obj.members {
		out[k] = m.value
	}
	return out
}

// decodeString decodes a scanned JSON string; lone surrogates become U+FFFD.
func decodeString(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	_ = json.Unmarshal(raw, &s) // scanned before
	return s
}

// hasLoneSurrogate says whether raw JSON holds an escaped surrogate without its other half, which Python keeps and
// the tokenizer then refuses.
func hasLoneSurrogate(raw []byte) bool {
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 || i+1 >= len(raw) {
			return false
		}
		if raw[i+1] != 'u' || i+6 > len(raw) {
			raw = raw[i+2:]
			continue
		}
		r := hex4(raw[i+2 : i+6])
		raw = raw[i+6:]
		switch {
		case r >= 0xDC00 && r <= 0xDFFF:
			return true
		case r >= 0xD800 && r < 0xDC00:
			if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
				return true
			}
			if lo := hex4(raw[2:6]); lo < 0xDC00 || lo > 0xDFFF {
				return true
			}
			raw = raw[6:]
		}
	}
}

func hex4(b []byte) uint64 {
	n, _ := strconv.ParseUint(string(b), 16, 32)
	return n
}

func (v value) float() float64 {
	switch string(v.raw) {
	case "NaN":
		return math.NaN()
	case "Infinity":
		return math.Inf(1)
	case "-Infinity":
		return math.Inf(-1)
	}
	f, _ := strconv.ParseFloat(string(v.raw), 64) // out of range gives an infinity, as in Python
	return f
}

// input is how vLLM shows a refused value in an error: str() of it, containers by their size only
// (entrypoints/serve/utils/server_utils.py).
func (v value) input() string {
	switch v.kind {
	case kindNull:
		return "None"
	case kindBool:
		if v.raw[0] == 't' {
			return "True"
		}
		return "False"
	case kindString:
		return decodeString(v.raw)
	case kindFloat:
		return pyFloat(v.float())
	case kindList:
		return "<list of " + strconv.Itoa(v.n) + " items>"
	case kindDict:
		return "<dict of " + strconv.Itoa(v.n) + " items>"
	default:
		return string(v.raw)
	}
}

// pyFloat formats a float as Python's repr.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// pyRepr quotes a string as Python's repr does for printable text.
func pyRepr(s string) string {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	var b strings.Builder
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			b.WriteString(`\x`)
			b.WriteByte("0123456789abcdef"[r>>4])
			b.WriteByte("0123456789abcdef"[r&0xf])
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte(quote)
	return b.String()
}
