package simulator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"github.com/inferrail/inferrail/internal/openai"
	"github.com/inferrail/inferrail/tokenize"
)

// Lengths between which a model ends by itself when a request sets no maximum.
const (
	minNaturalTokens = 16
	maxNaturalTokens = 256
)

// generator makes text up: the i-th token is a function of the seed alone, so that equal prompts give equal answers.
type generator struct {
	tokenizer tokenize.Tokenizer
	first     []uint32 // ids to choose a text's first token from
	words     []uint32 // ids of the others; nil: the sim tokenizer's own
}

// newGenerator prepares a model's words: those of a list that are one token each, with and without a space in front.
// Text made of them gives the same ids when it comes back in a later turn.
func newGenerator(m *tokenize.Model) (*generator, error) {
	g := &generator{tokenizer: m.Tokenizer()}
	if m.Fingerprint() == tokenize.NewSim().Fingerprint() {
		return g, nil
	}
	for _, w := range strings.Fields(wordList) {
		bare, err := g.tokenizer.Append(nil, w)
		if err != nil {
			return nil, err
		}
		spaced, err := g.tokenizer.Append(nil, " "+w)
		if err != nil {
			return nil, err
		}
		if len(bare) == 1 && len(spaced) == 1 {
			g.first, g.words = append(g.first, bare[0]), append(g.words, spaced[0])
		}
	}
	if len(g.words) == 0 {
		return nil, errors.New("the tokenizer has none of the simulator's words as one token")
	}
	return g, nil
}

// wordList holds common English words, which the vocabularies of today's models have as single tokens.
const wordList = `about after again all also always and another any are around as ask at away back be because been before
best better big book both bring but by call can car care case change child city clear close come could country course
cover day did different do does done door down each early end enough even ever every eye face fact family far few field
find first follow food for form found free friend from full game gave get give go good great group grow had half hand
hard has have he head hear help her here high him his hold home hope hour house how idea if important in into is it its
job just keep kind knew know land large last later lead learn leave left less let life light like line list little live
local long look lost lot love made make man many may mean might mind money month more morning most move much music must
my name near need never new next night no not note nothing now number of off often old on once one only open or order
other our out over own page paper part past people place plan play point power present problem public put question quite
read real reason right room run said same saw say school second see seem sense set several she short should show side
since small so some sound space stand start state still stop story such sure system take talk team tell than that the
their them then there these they thing think this those though thought three through time to today together too took
top toward town tree true try turn two under until up use very voice wait walk want war was watch water way we week well
went were what when where which while white who whole why will with without woman word work world would write year yes
yet you young your`

// token gives the i-th token for a seed.
func (g *generator) token(seed uint64, i int) uint32 {
	if g.words == nil {
		return tokenize.SimText(seed, i)
	}
	words := g.words
	if i == 0 {
		words = g.first
	}
	return words[mix(seed+uint64(i)*0x9e3779b97f4a7c15)%uint64(len(words))]
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// seedOf hashes a prompt.
func seedOf(tokens []uint32) uint64 {
	var h xxh3.Hasher
	var buf [4096]byte
	for len(tokens) > 0 {
		n := min(len(tokens), len(buf)/4)
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(buf[4*i:], t)
		}
		_, _ = h.Write(buf[:4*n]) // never fails
		tokens = tokens[n:]
	}
	return h.Sum64()
}

// outputPlan is what a sequence will generate, which is known before it runs.
type outputPlan struct {
	seed      uint64
	stopAfter int // tokens; 0: it goes on to its maximum
	stop      openai.StopReason
	// textEnd is where a stop string cuts the text, in bytes; -1: nowhere.
	textEnd int
	// hideLast leaves the last token out of the text, as vLLM does with a stop token.
	hideLast bool
	// hold is how many bytes of text a stream holds back while a stop string could still begin in them.
	hold int
}

// plan decides what the child-th sequence of a prompt generates within limit tokens.
func (g *generator) plan(p *params, prompt []uint32, child, limit int) outputPlan {
	out := outputPlan{seed: seedOf(prompt), textEnd: -1}
	if p.temperature > 0 {
		if p.hasSeed {
			out.seed = mix(out.seed ^ uint64(p.seed))
		}
		out.seed += uint64(child) * 0xd1342543de82ef95
	}
	if !p.hasMax && !p.ignoreEOS {
		natural := minNaturalTokens + int(mix(out.seed)%(maxNaturalTokens-minNaturalTokens+1))
		out.stopAfter = min(max(natural, int(p.minTokens.n)), limit+1) // beyond the limit it does not count
	}
	if len(p.stop) > 0 || len(p.stopTokens) > 0 {
		if out.stopAfter > 0 {
			limit = min(limit, out.stopAfter)
		}
		g.findStop(p, &out, limit)
	}
	return out
}

// findStop generates ahead until a stop string or token comes, as vLLM looks for them: a stop token by id and at least
// min_tokens tokens in, a stop string in the text after each token, in the order of the list
// (v1/engine/detokenizer.py, check_stop_strings).
func (g *generator) findStop(p *params, out *outputPlan, limit int) {
	longest := 0
	stops := make([][]byte, len(p.stop))
	for i, s := range p.stop {
		stops[i] = []byte(s)
		longest = max(longest, len(s))
	}
	if !p.includeStop {
		out.hold = max(longest-1, 0)
	}
	isStopToken := func(id uint32) bool {
		_, found := slices.BinarySearch(p.stopTokens, id)
		return found
	}
	var text []byte
	for i := range limit {
		id := g.token(out.seed, i)
		if i+1 >= int(p.minTokens.n) && isStopToken(id) {
			out.stopAfter, out.hideLast = i+1, true
			out.stop = openai.StopReason{Kind: openai.StopToken, Token: id}
			return
		}
		before := len(text)
		text = g.tokenizer.Decode(text, []uint32{id})
		if i+1 <= int(p.minTokens.n) && p.minTokens.n > 0 {
			continue
		}
		for n, s := range stops {
			from := max(before-len(s)+1, 0)
			at := bytes.Index(text[from:], s)
			if at < 0 {
				continue
			}
			out.stopAfter, out.textEnd = i+1, from+at
			if p.includeStop {
				out.textEnd += len(s)
			}
			out.stop = openai.StopReason{Kind: openai.StopText, Text: p.stop[n]}
			return
		}
	}
}

// textStream turns a sequence's tokens into the text to send.
type textStream struct {
	plan    *outputPlan
	decoder tokenize.Tokenizer
	held    []byte // decoded and not given out
	given   int    // bytes given out
}

// add gives the text that more tokens bring. last says that they end the sequence.
func (t *textStream) add(tokens []uint32, last bool) string {
	if last && t.plan.hideLast {
		tokens = tokens[:len(tokens)-1]
	}
	t.held = t.decoder.Decode(t.held, tokens)
	n := len(t.held)
	if end := t.plan.textEnd; end >= 0 {
		n = min(n, end-t.given)
	}
	if !last {
		n = min(n, max(len(t.held)-t.plan.hold, 0))
		for n > 0 && n < len(t.held) && !utf8.RuneStart(t.held[n]) {
			n--
		}
	}
	out := string(t.held[:n])
	t.given += n
	t.held = append(t.held[:0], t.held[n:]...)
	return out
}

// randomID is a request id as vLLM makes them: 16 hexadecimal digits.
func randomID() string {
	const digits = "0123456789abcdef"
	var b [16]byte
	x := rand.Uint64()
	for i := range b {
		b[i] = digits[x&0xf]
		x >>= 4
	}
	return string(b[:])
}
