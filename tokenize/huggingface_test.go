package tokenize

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type object = map[string]any

// smallModel returns the files of a model with a vocabulary of bytes, "ab",
// "abc" and "ba".
func smallModel() (tokenizer, config object) {
	vocab := object{}
	for r, b := range byteLetters() {
		if b >= 0 {
			vocab[string(rune(r))] = b
		}
	}
	vocab["ab"], vocab["abc"], vocab["ba"] = 256, 257, 258
	token := object{"id": 300, "content": "<end>", "special": true, "normalized": false, "lstrip": false, "rstrip": false, "single_word": false}
	tokenizer = object{
		"normalizer": object{"type": "NFC"},
		"pre_tokenizer": object{"type": "Sequence", "pretokenizers": []any{
			object{"type": "Split", "pattern": object{"Regex": qwenPattern}, "behavior": "Isolated", "invert": false},
			object{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		}},
		"decoder":      object{"type": "ByteLevel"},
		"added_tokens": []any{token},
		"model": object{
			"type": "BPE", "vocab": vocab, "merges": []any{[]string{"b", "a"}, []string{"a", "b"}, []string{"ab", "c"}},
		},
	}
	config = object{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<end>", "added_tokens_decoder": object{"300": maps.Clone(token)}}
	delete(config["added_tokens_decoder"].(object)["300"].(object), "id")
	return tokenizer, config
}

// writeModel writes a model directory; nil leaves a file out.
func writeModel(t *testing.T, tokenizer, config object, template string) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name string, v any) {
		b, err := json.Marshal(v)
		if s, ok := v.(string); ok {
			b = []byte(s)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("config.json", object{"model_type": "qwen3"})
	write("tokenizer.json", tokenizer)
	write("tokenizer_config.json", config)
	if template != "" {
		write("chat_template.jinja", template)
	}
	return dir
}

func TestSmallModel(t *testing.T) {
	t.Parallel()
	tokenizer, config := smallModel()
	m, err := LoadHuggingFace(writeModel(t, tokenizer, config, "{{ messages }}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		text string
		want []uint32
	}{
		{"", nil}, {"a", []uint32{'a'}}, {"ab", []uint32{256}}, {"abc", []uint32{257}},
		{"abab", []uint32{'a', 258, 'b'}}, // the merge of lowest rank first
		{"ab<end>c", []uint32{256, 300, 'c'}}, {"<end", []uint32{'<', 'e', 'n', 'd'}},
	} {
		if got, err := m.Tokenizer().Append(nil, tc.text); err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%q: got %d (%v), want %d", tc.text, got, err, tc.want)
		}
	}
	if _, err := m.Chat([]byte(`{"messages":[{"role":"user","content":"hi"}]}`)); outcome(err) != ReasonTemplate || m.ChatSupport() == nil {
		t.Errorf("another template gives %v, want reason %q", err, ReasonTemplate)
	}
	if p, err := m.Completion([]byte(`{"prompt":"abc"}`)); err != nil || len(p.Tokens) != 1 {
		t.Errorf("got %v (%v) for a completion", p, err)
	}
	if got := string(m.Tokenizer().Decode(nil, []uint32{0xe4, 0xb8, 'a', 0xff, 300, 999, 'b'})); got != "\ufffda\ufffd<end>b" {
		t.Errorf("decoded %q", got)
	}
}

// Whatever is not followed is refused at load, naming the part.
func TestLoadRefusesWhatItDoesNotFollow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		change func(tokenizer, config object)
	}{
		{"normalizer", func(t, _ object) { t["normalizer"] = object{"type": "NFKC"} }},
		{"normalizer", func(t, _ object) { t["normalizer"] = nil }},
		{"truncation", func(t, _ object) { t["truncation"] = object{"max_length": 5} }},
		{"padding", func(t, _ object) { t["padding"] = object{} }},
		{"post_processor", func(t, _ object) { t["post_processor"] = object{"type": "TemplateProcessing"} }},
		{"decoder", func(t, _ object) { t["decoder"] = object{"type": "Fuse"} }},
		{"pre_tokenizer", func(t, _ object) { t["pre_tokenizer"] = object{"type": "Whitespace"} }},
		{"Split", func(t, _ object) {
			t["pre_tokenizer"].(object)["pretokenizers"].([]any)[0].(object)["pattern"] = object{"Regex": `\s+`}
		}},
		{"ByteLevel", func(t, _ object) {
			t["pre_tokenizer"].(object)["pretokenizers"].([]any)[1].(object)["add_prefix_space"] = true
		}},
		{`type "Unigram"`, func(t, _ object) { t["model"].(object)["type"] = "Unigram" }},
		{"dropout", func(t, _ object) { t["model"].(object)["dropout"] = 0.1 }},
		{"unk_token", func(t, _ object) { t["model"].(object)["unk_token"] = "a" }},
		{"byte_fallback", func(t, _ object) { t["model"].(object)["byte_fallback"] = true }},
		{"continuing_subword_prefix", func(t, _ object) { t["model"].(object)["continuing_subword_prefix"] = "##" }},
		{"merges", func(t, _ object) { t["model"].(object)["merges"] = []string{"a c"} }},
		{"no space", func(t, _ object) { t["model"].(object)["merges"] = []string{"ab"} }},
		{"has no token", func(t, _ object) { delete(t["model"].(object)["vocab"].(object), "a") }},
		{"spells no byte", func(t, _ object) { t["model"].(object)["vocab"].(object)["人"] = 7 }},
		{"too large", func(t, _ object) { t["model"].(object)["vocab"].(object)["aa"] = maxVocabulary }},
		{"lstrip", func(t, c object) {
			t["added_tokens"].([]any)[0].(object)["lstrip"] = true
			delete(c, "added_tokens_decoder")
		}},
		{"added_tokens_decoder", func(_, c object) { c["added_tokens_decoder"].(object)["300"].(object)["rstrip"] = true }},
		{"added_tokens_decoder", func(_, c object) {
			d := c["added_tokens_decoder"].(object)
			d["301"] = d["300"]
			delete(d, "300")
		}},
		{`special token "<pad>"`, func(_, c object) { c["pad_token"] = "<pad>" }},
		{`special token "<x>"`, func(_, c object) { c["extra_special_tokens"] = object{"x": "<x>"} }},
		{`special token "<y>"`, func(_, c object) { c["additional_special_tokens"] = []any{object{"content": "<y>"}} }},
		{"tokenizer_class", func(_, c object) { c["tokenizer_class"] = "LlamaTokenizer" }},
		{"add_bos_token", func(_, c object) { c["add_bos_token"] = true }},
		{"split_special_tokens", func(_, c object) { c["split_special_tokens"] = true }},
		{"add_prefix_space", func(_, c object) { c["add_prefix_space"] = true }},
		{"several chat templates", func(_, c object) { c["chat_template"] = []any{object{"name": "a", "template": "b"}} }},
	} {
		tokenizer, config := smallModel()
		tc.change(tokenizer, config)
		_, err := LoadHuggingFace(writeModel(t, tokenizer, config, ""))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("got error %v, want one that names %s", err, tc.want)
		}
	}
	if _, err := LoadHuggingFace(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty directory gives %v", err)
	}
}

func TestFingerprintChangesWithTheTokenizer(t *testing.T) {
	t.Parallel()
	load := func(change func(tokenizer, config object), template string) string {
		tokenizer, config := smallModel()
		change(tokenizer, config)
		m, err := LoadHuggingFace(writeModel(t, tokenizer, config, template))
		if err != nil {
			t.Fatal(err)
		}
		return m.Fingerprint()
	}
	same := func(object, object) {}
	base := load(same, "x")
	if again := load(same, "x"); again != base {
		t.Errorf("equal files give %s and %s", base, again)
	}
	for name, other := range map[string]string{
		"template": load(same, "y"),
		"merges": load(func(tok, _ object) {
			m := tok["model"].(object)
			m["merges"] = m["merges"].([]any)[1:]
		}, "x"),
		"configuration": load(func(_, c object) { c["pad_token"] = "<end>" }, "x"),
	} {
		if other == base {
			t.Errorf("another %s gives the same fingerprint", name)
		}
	}
}

// Both ways of merging give the same ids, as do all splits of the work.
func TestMergeSmallAndLargeAgree(t *testing.T) {
	t.Parallel()
	b := qwen3(t).tokenizer.(*bpe)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom([]rune("aaabcdeothinérΩ人 \n")), 1, -1, smallPiece).Draw(t, "piece")
		small, large := b.mergeSmall(nil, s), b.mergeLarge(nil, s)
		if !slices.Equal(small, large) {
			t.Fatalf("%q: %d by scanning, %d by the heap", s, small, large)
		}
		if got := b.piece(nil, s); !slices.Equal(got, small) {
			t.Fatalf("%q: %d as a piece, %d by scanning", s, got, small)
		}
	})
}

// A longer text begins with the tokens of the shorter one, up to the last
// added token of it.
func TestQwen3AddedTokensAreSafeCuts(t *testing.T) {
	t.Parallel()
	tok := qwen3(t).Tokenizer()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a")+"<|im_end|>", rapid.String().Draw(t, "b")
		first, _ := tok.Append(nil, a)
		whole, _ := tok.Append(nil, a+b)
		second, _ := tok.Append(slices.Clone(first), b)
		if !slices.Equal(whole, second) {
			t.Fatalf("%q and %q: %d together, %d one by one", a, b, whole, second)
		}
	})
}
