package tokenize

import (
	"strings"
	"unicode/utf8"
)

var words = []struct {
	text string
	kind kind
}{
	{"null", kindNull}, {"true", kindTrue}, {"false", kindFalse},
	{"NaN", kindNumber}, {"Infinity", kindNumber}, {"-Infinity", kindNumber},
}

// maxDigits is the length past which Python's int() refuses a number.
const maxDigits = 4300

func (d *decoder) scalar() (value, error) {
	rest := d.s[d.i:]
	for _, w := range words {
		if rest != "" && rest[0] <= '9' && rest[0] != '-' {
			break
		}
		if strings.HasPrefix(rest, w.text) {
			d.i += len(w.text)
			return value{kind: w.kind, text: w.text}, nil
		}
	}
	n, integer := numberLength(rest)
	if n == 0 {
		return value{}, d.errorf("not a value")
	}
	if integer && n > maxDigits {
		return value{}, d.errorf("a number has too many digits")
	}
	d.i += n
	return value{kind: kindNumber, text: rest[:n]}, nil
}

// numberLength is the length of the longest JSON number that s starts with, 0
// for none, and whether it is an integer.
func numberLength(s string) (n int, integer bool) {
	digits := func(i int) int {
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i
	}
	i := 0
	if i < len(s) && s[i] == '-' {
		i++
	}
	switch j := digits(i); {
	case j == i:
		return 0, false
	case s[i] == '0':
		i++ // a further digit is another, misplaced, value
	default:
		i = j
	}
	integer = true
	if i < len(s) && s[i] == '.' {
		if j := digits(i + 1); j > i+1 {
			i, integer = j, false
		}
	}
	if i < len(s) && (s[i] == 'e' || s[i] == 'E') {
		j := i + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		if k := digits(j); k > j {
			i, integer = k, false
		}
	}
	return i, integer
}

// span passes over a string and returns its contents as written, and whether
// they hold escapes.
func (d *decoder) span() (contents string, escaped bool, err error) {
	start := d.i + 1
	for i := start; i < len(d.s); i++ {
		switch c := d.s[i]; {
		case c == '"':
			d.i = i + 1
			return d.s[start:i], escaped, nil
		case c == '\\':
			escaped = true
			i++
			if i >= len(d.s) {
				break
			}
			if d.s[i] == 'u' {
				if _, ok := hex4(d.s[i+1:]); !ok {
					d.i = i
					return "", false, d.errorf("bad \\u escape")
				}
			} else if strings.IndexByte(`"\/bfnrt`, d.s[i]) < 0 {
				d.i = i
				return "", false, d.errorf("bad escape")
			}
		case c < 0x20:
			d.i = i
			return "", false, d.errorf("control character in a string")
		}
	}
	d.i = len(d.s)
	return "", false, d.errorf("a string does not end")
}

// str decodes the string at the cursor.
func (d *decoder) str() (string, error) {
	if d.i >= len(d.s) || d.s[d.i] != '"' {
		return "", d.errorf("a string is missing")
	}
	s, escaped, err := d.span()
	if err != nil || !escaped {
		return s, err
	}
	return d.unescape(s), nil
}

var escapes = [256]byte{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '/': '/'}

// unescape decodes contents that span has checked.
func (d *decoder) unescape(s string) string {
	b := make([]byte, 0, len(s))
	for {
		i := strings.IndexByte(s, '\\')
		if i < 0 {
			return string(append(b, s...))
		}
		b = append(b, s[:i]...)
		if s[i+1] != 'u' {
			b = append(b, escapes[s[i+1]])
			s = s[i+2:]
			continue
		}
		r, _ := hex4(s[i+2:])
		s = s[i+6:]
		if r >= 0xd800 && r < 0xdc00 && strings.HasPrefix(s, `\u`) {
			if low, _ := hex4(s[2:]); low >= 0xdc00 && low < 0xe000 {
				r = 0x10000 + (r-0xd800)<<10 + (low - 0xdc00)
				s = s[6:]
			}
		}
		if r >= 0xd800 && r < 0xe000 {
			d.surrogate = true
		}
		b = utf8.AppendRune(b, r)
	}
}

func hex4(s string) (rune, bool) {
	if len(s) < 4 {
		return 0, false
	}
	var r rune
	for i := range 4 {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}
