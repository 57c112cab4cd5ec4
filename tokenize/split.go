package tokenize

import (
	"strings"
	"unicode/utf8"
)

// splitter cuts off the first piece of a text: the length in bytes, at least
// one, of what the pre-tokenizer would make the first word.
type splitter func(s string) int

// qwenPattern is the pre-tokenizer's expression of Qwen2 and Qwen3.
const qwenPattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`

// splitters holds the expressions that are followed, each by hand: no
// alternative of them needs more than one character of lookahead, so that
// cutting a text is linear.
var splitters = map[string]splitter{qwenPattern: splitQwen}

// splitQwen follows qwenPattern, alternative by alternative.
func splitQwen(s string) int {
	if s[0] == '\'' {
		if n := contraction(s); n > 0 {
			return n
		}
	}
	class, n := classAt(s, 0)
	next, nextLen := classAt(s, n)
	switch {
	case class == classLetter:
		return n + runOf(s[n:], classLetter)
	case class == classNumber:
		return n
	case next == classLetter && s[0] != '\r' && s[0] != '\n':
		return n + nextLen + runOf(s[n+nextLen:], classLetter)
	case s[0] == ' ' && next == classOther:
		n += nextLen
		fallthrough
	case class == classOther:
		n += runOf(s[n:], classOther)
		for n < len(s) && (s[n] == '\r' || s[n] == '\n') {
			n++
		}
		return n
	}
	return splitSpace(s)
}

// splitSpace cuts off white space: through its last line break; else all of it
// but the last character, unless the text ends with it.
func splitSpace(s string) int {
	end := runOf(s, classSpace)
	if i := strings.LastIndexAny(s[:end], "\r\n"); i >= 0 {
		return i + 1
	}
	if end == len(s) {
		return end
	}
	if _, last := utf8.DecodeLastRuneInString(s[:end]); end > last {
		return end - last
	}
	return end
}

// runOf is the length of the run of characters of one class that s starts with.
func runOf(s string, class charClass) int {
	i := 0
	for i < len(s) {
		c, n := classAt(s, i)
		if c != class {
			break
		}
		i += n
	}
	return i
}

// contraction is the length of the contraction that s, which starts with an
// apostrophe, starts with. Ignoring case, U+017F is an s.
func contraction(s string) int {
	if len(s) < 2 {
		return 0
	}
	lower := func(i int) byte {
		if i < len(s) && s[i] >= 'A' && s[i] <= 'Z' {
			return s[i] + 'a' - 'A'
		} else if i < len(s) {
			return s[i]
		}
		return 0
	}
	switch a, b := lower(1), lower(2); {
	case a == 's', a == 't', a == 'm', a == 'd':
		return 2
	case a == 'r' && b == 'e', a == 'v' && b == 'e', a == 'l' && b == 'l':
		return 3
	}
	if strings.HasPrefix(s[1:], "ſ") {
		return 1 + len("ſ")
	}
	return 0
}
