package tokenize

import (
	"math"
	"strconv"
	"strings"
)

// appendPython appends v as Python's json.dumps(v, ensure_ascii=False) prints
// what json.loads made of it (CPython 3.12): ", " and ": " as separators,
// floats by repr.
func appendPython(dst []byte, v value) []byte {
	switch v.kind {
	case kindMissing, kindNull:
		return append(dst, "null"...)
	case kindTrue:
		return append(dst, "true"...)
	case kindFalse:
		return append(dst, "false"...)
	case kindNumber:
		return appendPythonNumber(dst, v.text)
	case kindString:
		return appendPythonString(dst, v.text)
	case kindArray:
		dst = append(dst, '[')
		for i, e := range v.c.values {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = appendPython(dst, e)
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for i, e := range v.c.values {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = appendPythonString(dst, v.c.keys[i])
		dst = append(dst, ": "...)
		dst = appendPython(dst, e)
	}
	return append(dst, '}')
}

func appendPythonNumber(dst []byte, s string) []byte {
	switch {
	case s == "-0":
		return append(dst, '0') // an int
	case !strings.ContainsAny(s, ".eEN") && !strings.HasSuffix(s, "Infinity"):
		return append(dst, s...)
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range gives an infinity, as in Python
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	case f != 0 && (math.Abs(f) < 1e-4 || math.Abs(f) >= 1e16):
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if !strings.Contains(string(dst[start:]), ".") {
		dst = append(dst, ".0"...)
	}
	return dst
}

func appendPythonString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		default:
			dst = append(dst, `\u00`...)
			dst = append(dst, hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}
