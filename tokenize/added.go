package tokenize

import (
	"cmp"
	"slices"
	"strings"
)

// addedToken is a token that is recognised in raw text before anything else.
type addedToken struct {
	text string
	id   uint32
}

// addedTokens finds added tokens as Hugging Face does: the leftmost, the
// longest among those. They are few, and share few first bytes.
type addedTokens struct {
	first  string // the first bytes of all tokens, each once
	byByte [256][]addedToken
}

func newAddedTokens(tokens []addedToken) addedTokens {
	var a addedTokens
	for _, t := range tokens {
		if strings.IndexByte(a.first, t.text[0]) < 0 {
			a.first += t.text[:1]
		}
		a.byByte[t.text[0]] = append(a.byByte[t.text[0]], t)
	}
	for _, list := range a.byByte {
		slices.SortStableFunc(list, func(a, b addedToken) int { return cmp.Compare(len(b.text), len(a.text)) })
	}
	return a
}

// find returns the place of the first added token in s and the token, or
// len(s) and nil.
func (a *addedTokens) find(s string) (int, *addedToken) {
	for i := 0; i < len(s); i++ {
		if len(a.first) == 1 {
			n := strings.IndexByte(s[i:], a.first[0])
			if n < 0 {
				break
			}
			i += n
		}
		for j := range a.byByte[s[i]] {
			if t := &a.byByte[s[i]][j]; strings.HasPrefix(s[i:], t.text) {
				return i, t
			}
		}
	}
	return len(s), nil
}
