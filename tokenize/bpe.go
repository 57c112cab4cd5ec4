package tokenize

import (
	"math"
	"unicode/utf8"
)

// bpe is a byte-level BPE tokenizer as Hugging Face's: the text is cut at
// added tokens, what is between them is normalized, cut into pieces, and each
// piece's bytes are merged, the merge of lowest rank first, the leftmost among
// equals. It is immutable.
type bpe struct {
	added     addedTokens
	normalize func(string) string
	split     splitter
	bytes     [256]uint32
	merges    mergeTable
	// whole holds the pieces that the merges make one token of; with
	// ignore_merges, every token.
	whole  map[string]uint32
	tokens []string // id to bytes; "" for ids that are not used
}

// smallPiece is the length in bytes up to which merging by scanning beats the
// heap.
const smallPiece = 64

// Append implements [Tokenizer].
func (t *bpe) Append(dst []uint32, text string) ([]uint32, error) {
	for text != "" {
		at, token := t.added.find(text)
		section := t.normalize(text[:at])
		for section != "" {
			n := t.split(section)
			dst = t.piece(dst, section[:n])
			section = section[n:]
		}
		if token == nil {
			break
		}
		dst = append(dst, token.id)
		text = text[at+len(token.text):]
	}
	return dst, nil
}

func (t *bpe) piece(dst []uint32, s string) []uint32 {
	if len(s) == 1 {
		return append(dst, t.bytes[s[0]])
	}
	if id, ok := t.whole[s]; ok {
		return append(dst, id)
	}
	return t.merge(dst, s)
}

func (t *bpe) merge(dst []uint32, s string) []uint32 {
	if len(s) <= smallPiece {
		return t.mergeSmall(dst, s)
	}
	return t.mergeLarge(dst, s)
}

// mergeSmall looks for the best merge again after each one: quadratic, and
// without allocation.
func (t *bpe) mergeSmall(dst []uint32, s string) []uint32 {
	var ids, ranks, made [smallPiece]uint32
	n := len(s)
	for i := range n {
		ids[i] = t.bytes[s[i]]
	}
	look := func(i int) {
		ranks[i] = math.MaxUint32
		if i+1 < n {
			ranks[i], made[i] = t.merges.find(ids[i], ids[i+1])
		}
	}
	for i := range n {
		look(i)
	}
	for {
		best, at := uint32(math.MaxUint32), 0
		for i, r := range ranks[:n] {
			if r < best {
				best, at = r, i
			}
		}
		if best == math.MaxUint32 {
			return append(dst, ids[:n]...)
		}
		ids[at] = made[at]
		copy(ids[at+1:n], ids[at+2:n])
		copy(ranks[at+1:n], ranks[at+2:n])
		copy(made[at+1:n], made[at+2:n])
		n--
		look(at)
		if at > 0 {
			look(at - 1)
		}
	}
}

// mergeLarge keeps the merges that may be made in a heap and the symbols in a
// linked list: n log n in time, some 30 bytes a byte.
func (t *bpe) mergeLarge(dst []uint32, s string) []uint32 {
	l := newSymbols(t, s)
	queue := make(candidates, 0, len(s))
	for i := range len(s) {
		if c, ok := l.candidate(int32(i)); ok {
			queue = append(queue, c)
		}
	}
	queue.init()
	for len(queue) > 0 {
		c := queue.pop()
		i := c.place()
		if now, ok := l.candidate(i); !ok || now != c {
			continue // one of the two has grown since
		}
		l.join(i)
		if c, ok := l.candidate(i); ok {
			queue.push(c)
		}
		if before := l.prev[i]; before >= 0 {
			if c, ok := l.candidate(before); ok {
				queue.push(c)
			}
		}
	}
	for i := int32(0); int(i) < len(s); i = l.next[i] {
		dst = append(dst, l.ids[i])
	}
	return dst
}

// symbols is the linked list of a piece's symbols, each at the place of its
// first byte. next is -1 for a place whose symbol was joined to another.
type symbols struct {
	merges     *mergeTable
	ids        []uint32
	next, prev []int32
}

func newSymbols(t *bpe, s string) *symbols {
	l := &symbols{&t.merges, make([]uint32, len(s)), make([]int32, len(s)), make([]int32, len(s))}
	for i := range len(s) {
		l.ids[i] = t.bytes[s[i]]
		l.next[i], l.prev[i] = int32(i+1), int32(i-1)
	}
	return l
}

// candidate returns the merge of the symbol at place i and the one after it.
func (l *symbols) candidate(i int32) (candidate, bool) {
	j := l.next[i]
	if j < 0 || int(j) >= len(l.ids) {
		return 0, false
	}
	rank, _ := l.merges.find(l.ids[i], l.ids[j])
	return newCandidate(rank, i), rank != math.MaxUint32
}

// join makes the merge.
func (l *symbols) join(i int32) {
	j := l.next[i]
	_, l.ids[i] = l.merges.find(l.ids[i], l.ids[j])
	l.next[i], l.next[j] = l.next[j], -1
	if after := l.next[i]; int(after) < len(l.ids) {
		l.prev[after] = i
	}
}

// Decode implements [Tokenizer]. As in Hugging Face's ByteLevel decoder, ids
// that are not in the vocabulary are left out, and each maximal part of an
// invalid UTF-8 sequence gives one U+FFFD.
func (t *bpe) Decode(dst []byte, ids []uint32) []byte {
	start := len(dst)
	for _, id := range ids {
		if int64(id) < int64(len(t.tokens)) {
			dst = append(dst, t.tokens[id]...)
		}
	}
	if utf8.Valid(dst[start:]) {
		return dst
	}
	return appendLossy(dst[:start:start], dst[start:])
}

// appendLossy appends b as Rust's String::from_utf8_lossy prints it.
func appendLossy(dst, b []byte) []byte {
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			n = invalidLength(b)
		}
		dst = utf8.AppendRune(dst, r)
		b = b[n:]
	}
	return dst
}

// invalidLength is the length of the maximal subpart (Unicode standard, section
// 3.9) of the invalid sequence that b starts with.
func invalidLength(b []byte) int {
	// A subpart is a prefix that some continuation would make valid.
	tails := [][]byte{{0x80}, {0xbf}, {0x80, 0x80}, {0xbf, 0x80}, {0xbf, 0xbf}}
	for n := min(3, len(b)); n > 1; n-- {
		for _, tail := range tails {
			if utf8.Valid(append(append(make([]byte, 0, 6), b[:n]...), tail...)) && !utf8.Valid(b[:n]) {
				return n
			}
		}
	}
	return 1
}
