package tokenize

import (
	"cmp"
	"slices"
	"sort"
	"unicode/utf8"
)

// charClass says what Hugging Face's regex engine and normalizer make of a
// character: a class in the two low bits, and whether NFC may change it or join
// it to what is before it. Go's own tables are of another Unicode version.
type charClass uint8

const (
	classOther  charClass = 0
	classLetter charClass = 1 // \p{L}
	classNumber charClass = 2 // \p{N}
	classSpace  charClass = 3 // \s
	classMask   charClass = 3
	nfcActive   charClass = 4
)

func classOf(r rune) charClass {
	block := int(unicodeIndex[uint32(r)>>7]) << 6
	pair := unicodeBlocks[block+int(r&127)>>1] - 35
	return charClass(pair>>(3*(r&1))) & 7
}

// classAt is classOf without the NFC bit, for the character at s[i], and its
// length in bytes. Past the end it is a number of length 0, which nothing
// joins.
func classAt(s string, i int) (charClass, int) {
	if i >= len(s) {
		return classNumber, 0
	}
	if s[i] < utf8.RuneSelf {
		return classOf(rune(s[i])) & classMask, 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classOf(r) & classMask, n
}

// Hangul syllables, by arithmetic (Unicode standard, section 3.12).
const (
	hangulBase = 0xac00
	hangulL    = 0x1100
	hangulV    = 0x1161
	hangulT    = 0x11a7 // one before the first trailing jamo
	hangulLs   = 19
	hangulVs   = 21
	hangulTs   = 28
	hangulAll  = hangulLs * hangulVs * hangulTs
)

// nfc returns s in Unicode normalization form C with the tables of Hugging
// Face's normalizer. Unlike golang.org/x/text it never breaks long runs of
// combining marks. It returns s itself when nothing in it can change; else the
// time is n log n in the longest run of marks.
func nfc(s string) string {
	var out []byte
	var run []rune
	done := 0  // s[:done] is in out
	start := 0 // of the last character that starts a run
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			start = i
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if classOf(r)&nfcActive == 0 {
			start = i
			i += n
			continue
		}
		end := i + n
		for end < len(s) {
			r, n := utf8.DecodeRuneInString(s[end:])
			if classOf(r)&nfcActive == 0 {
				break
			}
			end += n
		}
		run = run[:0]
		for _, r := range s[start:end] {
			run = decompose(run, r)
		}
		if out == nil {
			out = make([]byte, 0, len(s)+16)
		}
		out = append(out, s[done:start]...)
		for _, r := range compose(reorder(run)) {
			out = utf8.AppendRune(out, r)
		}
		done, start, i = end, end, end
	}
	if out == nil {
		return s
	}
	return string(append(out, s[done:]...))
}

// decompose appends the full canonical decomposition of r.
func decompose(dst []rune, r rune) []rune {
	if r < 0xc0 {
		return append(dst, r)
	}
	if i := r - hangulBase; i >= 0 && i < hangulAll {
		dst = append(dst, hangulL+i/(hangulVs*hangulTs), hangulV+i/hangulTs%hangulVs)
		if t := i % hangulTs; t > 0 {
			dst = append(dst, hangulT+t)
		}
		return dst
	}
	i := sort.Search(len(decompositions), func(i int) bool { return rune(decompositions[i]>>42) >= r })
	if i == len(decompositions) || rune(decompositions[i]>>42) != r {
		return append(dst, r)
	}
	first, second := rune(decompositions[i]>>21&0x1fffff), rune(decompositions[i]&0x1fffff)
	dst = decompose(dst, first)
	if second != 0 {
		dst = decompose(dst, second)
	}
	return dst
}

func combiningClass(r rune) uint8 {
	if r < 0x300 {
		return 0
	}
	i := sort.Search(len(combiningClasses), func(i int) bool { return rune(combiningClasses[i]>>32) > r })
	if i == 0 || rune(combiningClasses[i-1]>>8&0xffffff) < r {
		return 0
	}
	return uint8(combiningClasses[i-1])
}

// reorder sorts each run of marks by combining class, in place.
func reorder(run []rune) []rune {
	for i := 0; i < len(run); {
		if combiningClass(run[i]) == 0 {
			i++
			continue
		}
		j := i + 1
		for j < len(run) && combiningClass(run[j]) != 0 {
			j++
		}
		slices.SortStableFunc(run[i:j], func(a, b rune) int { return cmp.Compare(combiningClass(a), combiningClass(b)) })
		i = j
	}
	return run
}

// compose joins characters to the starter before them, in place.
func compose(run []rune) []rune {
	out := run[:0]
	starter, last := -1, uint8(0) // place of the starter in out; class of the last character after it
	for _, r := range run {
		class := combiningClass(r)
		if starter >= 0 && (len(out)-1 == starter || last != 0 && last < class) {
			if c, ok := composed(out[starter], r); ok {
				out[starter] = c
				continue
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = append(out, r)
	}
	return out
}

// composed is the primary composite of two characters.
func composed(a, b rune) (rune, bool) {
	if l, v := a-hangulL, b-hangulV; l >= 0 && l < hangulLs && v >= 0 && v < hangulVs {
		return hangulBase + (l*hangulVs+v)*hangulTs, true
	}
	if i, t := a-hangulBase, b-hangulT; i >= 0 && i < hangulAll && i%hangulTs == 0 && t > 0 && t < hangulTs {
		return a + t, true
	}
	key := uint64(a)<<21 | uint64(b)
	i := sort.Search(len(compositions), func(i int) bool { return compositions[i]>>21 >= key })
	if i == len(compositions) || compositions[i]>>21 != key {
		return 0, false
	}
	return rune(compositions[i] & 0x1fffff), true
}
