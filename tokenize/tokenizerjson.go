package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"
)

// tokenizerJSON is Hugging Face's tokenizer.json (tokenizers 0.23.3).
type tokenizerJSON struct {
	Truncation    any               `json:"truncation"`
	Padding       any               `json:"padding"`
	AddedTokens   []tokenDefinition `json:"added_tokens"`
	Normalizer    any               `json:"normalizer"`
	PreTokenizer  any               `json:"pre_tokenizer"`
	PostProcessor any               `json:"post_processor"`
	Decoder       any               `json:"decoder"`
	Model         bpeModel          `json:"model"`
}

type bpeModel struct {
	Type                    string            `json:"type"`
	Dropout                 *float64          `json:"dropout"`
	UnkToken                *string           `json:"unk_token"`
	ContinuingSubwordPrefix string            `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string            `json:"end_of_word_suffix"`
	ByteFallback            bool              `json:"byte_fallback"`
	IgnoreMerges            bool              `json:"ignore_merges"`
	Vocab                   map[string]uint32 `json:"vocab"`
	Merges                  json.RawMessage   `json:"merges"`
}

// maxVocabulary bounds the ids, and so the table from ids to tokens.
const maxVocabulary = 1 << 22

// build makes the tokenizer, or says which part of the file is not followed.
func (t *tokenizerJSON) build() (*bpe, error) {
	split, err := t.pipeline()
	if err != nil {
		return nil, err
	}
	if err := t.Model.check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	b := &bpe{normalize: nfc, split: split, whole: make(map[string]uint32, len(t.Model.Vocab))}
	if err := b.vocabulary(&t.Model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := b.mergeRules(&t.Model); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	b.wholeTokens(t.Model.IgnoreMerges)
	var added []addedToken
	for _, a := range t.AddedTokens {
		if a.Normalized || a.LStrip || a.RStrip || a.SingleWord {
			return nil, fmt.Errorf("added_tokens: normalized, lstrip, rstrip or single_word of %q is not followed", a.Content)
		}
		if a.Content == "" {
			return nil, errors.New("added_tokens: an empty token is not followed")
		}
		if err := b.name(a.ID, a.Content); err != nil {
			return nil, fmt.Errorf("added_tokens: %w", err)
		}
		added = append(added, addedToken{a.Content, a.ID})
	}
	b.added = newAddedTokens(added)
	return b, nil
}

// pipeline checks the parts around the model.
func (t *tokenizerJSON) pipeline() (splitter, error) {
	switch {
	case t.Truncation != nil:
		return nil, errors.New("truncation is not followed")
	case t.Padding != nil:
		return nil, errors.New("padding is not followed")
	case !reflect.DeepEqual(t.Normalizer, map[string]any{"type": "NFC"}):
		return nil, fmt.Errorf("normalizer is not NFC: %s", brief(t.Normalizer))
	case t.PostProcessor != nil && typeOf(t.PostProcessor) != "ByteLevel":
		return nil, fmt.Errorf("post_processor is not ByteLevel: %s", brief(t.PostProcessor))
	case typeOf(t.Decoder) != "ByteLevel":
		return nil, fmt.Errorf("decoder is not ByteLevel: %s", brief(t.Decoder))
	}
	sequence, _ := t.PreTokenizer.(map[string]any)
	parts, _ := sequence["pretokenizers"].([]any)
	if typeOf(t.PreTokenizer) != "Sequence" || len(parts) != 2 {
		return nil, fmt.Errorf("pre_tokenizer is not a sequence of Split and ByteLevel: %s", brief(t.PreTokenizer))
	}
	level, _ := parts[1].(map[string]any)
	if typeOf(level) != "ByteLevel" || level["add_prefix_space"] != false || level["use_regex"] != false {
		return nil, fmt.Errorf("pre_tokenizer: not a plain ByteLevel: %s", brief(level))
	}
	first, _ := parts[0].(map[string]any)
	pattern, _ := first["pattern"].(map[string]any)
	expression, _ := pattern["Regex"].(string)
	split, ok := splitters[expression]
	if typeOf(first) != "Split" || first["behavior"] != "Isolated" || first["invert"] != false || !ok {
		return nil, fmt.Errorf("pre_tokenizer: Split is not followed: %s", brief(first))
	}
	return split, nil
}

func typeOf(part any) string {
	m, _ := part.(map[string]any)
	s, _ := m["type"].(string)
	return s
}

// brief prints a part of the file for an error.
func brief(part any) string {
	b, err := json.Marshal(part)
	if err != nil {
		return "?"
	}
	if len(b) > 200 {
		return strings.ToValidUTF8(string(b[:200]), "") + "…"
	}
	return string(b)
}

func (m *bpeModel) check() error {
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("type %q is not followed", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout is not followed")
	case m.UnkToken != nil:
		return errors.New("unk_token is not followed")
	case m.ContinuingSubwordPrefix != "" || m.EndOfWordSuffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not followed")
	case m.ByteFallback:
		return errors.New("byte_fallback is not followed")
	}
	return nil
}

// name sets the bytes of an id.
func (t *bpe) name(id uint32, text string) error {
	if id >= maxVocabulary {
		return fmt.Errorf("id %d of %q is too large", id, text)
	}
	for int(id) >= len(t.tokens) {
		t.tokens = append(t.tokens, make([]string, int(id)+1-len(t.tokens))...)
	}
	t.tokens[id] = text
	return nil
}

func (t *bpe) vocabulary(m *bpeModel) error {
	letters := byteLetters()
	for spelled, id := range m.Vocab {
		text, err := fromLetters(spelled, &letters)
		if err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
		if err := t.name(id, text); err != nil {
			return fmt.Errorf("vocab: %w", err)
		}
	}
	for r, b := range letters {
		if b < 0 {
			continue
		}
		id, ok := m.Vocab[string(rune(r))]
		if !ok {
			return fmt.Errorf("vocab: byte %#x has no token", b)
		}
		t.bytes[b] = id
	}
	return nil
}

// letterCount is one more than the largest code point that spells a byte.
const letterCount = 0x144

// byteLetters maps the characters that spell bytes in a byte-level vocabulary
// to them, others to -1 (GPT-2's bytes_to_unicode): printable Latin-1
// characters spell themselves, the rest follow from U+0100 on.
func byteLetters() [letterCount]int {
	var letters [letterCount]int
	for i := range letters {
		letters[i] = -1
	}
	next := 0x100
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			letters[b] = b
		} else {
			letters[next] = b
			next++
		}
	}
	return letters
}

func fromLetters(s string, letters *[letterCount]int) (string, error) {
	b := make([]byte, 0, utf8.RuneCountInString(s))
	for _, r := range s {
		if r >= letterCount || letters[r] < 0 {
			return "", fmt.Errorf("token %q holds a character that spells no byte", s)
		}
		b = append(b, byte(letters[r]))
	}
	return string(b), nil
}

func (t *bpe) mergeRules(m *bpeModel) error {
	merges, err := m.mergePairs()
	if err != nil {
		return err
	}
	t.merges = newMergeTable(len(merges))
	for rank, pair := range merges {
		a, okA := m.Vocab[pair[0]]
		b, okB := m.Vocab[pair[1]]
		id, ok := m.Vocab[pair[0]+pair[1]]
		if !okA || !okB || !ok {
			return fmt.Errorf("merges: %q and %q, or both together, are not in the vocabulary", pair[0], pair[1])
		}
		t.merges.set(a, b, uint32(rank), id)
	}
	return nil
}

// mergePairs reads both forms of the list: pairs, or strings with a space.
func (m *bpeModel) mergePairs() ([][2]string, error) {
	var pairs [][2]string
	if json.Unmarshal(m.Merges, &pairs) == nil {
		return pairs, nil
	}
	var lines []string
	if err := json.Unmarshal(m.Merges, &lines); err != nil {
		return nil, fmt.Errorf("merges: %w", err)
	}
	pairs = make([][2]string, len(lines))
	for i, line := range lines {
		a, b, ok := strings.Cut(line, " ")
		if !ok {
			return nil, fmt.Errorf("merges: no space in %q", line)
		}
		pairs[i] = [2]string{a, b}
	}
	return pairs, nil
}

// wholeTokens finds the tokens that their own bytes are merged to, so that a
// piece that is one of them needs no merging.
func (t *bpe) wholeTokens(ignoreMerges bool) {
	var ids []uint32
	for id, text := range t.tokens {
		if text == "" {
			continue
		}
		if !ignoreMerges {
			if ids = t.merge(ids[:0], text); len(ids) != 1 || ids[0] != uint32(id) {
				continue
			}
		}
		t.whole[text] = uint32(id)
	}
}
