package tokenize

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// maxModelFile bounds what is read of one file of a model directory. The
// largest tokenizer.json in use is near 40 MB.
const maxModelFile = 256 << 20

// LoadHuggingFace reads a model directory: tokenizer.json or
// tokenizer.json.gz, tokenizer_config.json, config.json, and the chat template
// from chat_template.jinja or tokenizer_config.json. The ids are those of
// transformers 5.19 with tokenizers 0.23.3. A tokenizer with a part that is not
// followed is an error that names the part and the file. A chat template that is
// not followed is none: see [Model.ChatSupport].
func LoadHuggingFace(dir string) (*Model, error) {
	m, err := loadHuggingFace(dir)
	if err != nil {
		return nil, fmt.Errorf("loading model directory %q: %w", dir, err)
	}
	return m, nil
}

func loadHuggingFace(dir string) (*Model, error) {
	var config modelConfig
	if _, err := readJSON(dir, "config.json", &config); err != nil {
		return nil, err
	}
	var tc tokenizerConfig
	rawConfig, err := readJSON(dir, "tokenizer_config.json", &tc)
	if err != nil {
		return nil, err
	}
	var tj tokenizerJSON
	rawTokenizer, err := readJSON(dir, "tokenizer.json", &tj)
	if errors.Is(err, fs.ErrNotExist) {
		rawTokenizer, err = readJSON(dir, "tokenizer.json.gz", &tj)
	}
	if err != nil {
		return nil, err
	}
	if err := tc.check(config.ModelType, &tj); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	tokenizer, err := tj.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	text, err := chatTemplate(dir, &tc)
	if err != nil {
		return nil, err
	}
	m := &Model{
		name:        filepath.Base(filepath.Clean(dir)),
		fingerprint: fingerprint([]byte(config.ModelType), rawConfig, rawTokenizer, []byte(text)),
		tokenizer:   tokenizer,
	}
	m.template, m.noTemplate = lookUpTemplate(text)
	return m, nil
}

func lookUpTemplate(text string) (Template, string) {
	if text == "" {
		return nil, "the model has no chat template"
	}
	sum := sha256.Sum256([]byte(text))
	name := hex.EncodeToString(sum[:])
	if t, ok := templates[name]; ok {
		return t, ""
	}
	return nil, "the chat template with SHA-256 " + name[:16] + "… is not followed"
}

// templates holds the chat templates that are followed, by the SHA-256 of their
// text.
var templates = map[string]Template{qwen3Hash: qwen3Template{}}

// fingerprint hashes the parts, each with its length.
func fingerprint(parts ...[]byte) string {
	h := sha256.New()
	var length [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(length[:], uint64(len(p)))
		h.Write(length[:])
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// readJSON decodes a file of the directory and returns its bytes, uncompressed
// when the name ends in .gz.
func readJSON(dir, name string, to any) ([]byte, error) {
	b, err := readFile(dir, name)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, to); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", name, err)
	}
	return b, nil
}

func readFile(dir, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", name, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	var r io.Reader = f
	if filepath.Ext(name) == ".gz" {
		if r, err = gzip.NewReader(f); err != nil {
			return nil, fmt.Errorf("reading %s: %w", name, err)
		}
	}
	b, err := io.ReadAll(io.LimitReader(r, maxModelFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", name, err)
	}
	if len(b) > maxModelFile {
		return nil, fmt.Errorf("reading %s: larger than %d bytes", name, maxModelFile)
	}
	return b, nil
}

// chatTemplate returns the template's text, "" for none. transformers prefers
// the file to the configuration.
func chatTemplate(dir string, tc *tokenizerConfig) (string, error) {
	b, err := readFile(dir, "chat_template.jinja")
	if err == nil {
		return string(b), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "additional_chat_templates")); err == nil {
		return "", errors.New("additional_chat_templates: several chat templates are not followed")
	}
	var text string
	if len(tc.ChatTemplate) == 0 || string(tc.ChatTemplate) == "null" {
		return "", nil
	}
	if err := json.Unmarshal(tc.ChatTemplate, &text); err != nil {
		return "", errors.New("tokenizer_config.json: several chat templates are not followed")
	}
	return text, nil
}

// modelConfig is what config.json says about tokenization.
type modelConfig struct {
	ModelType string `json:"model_type"`
}

// tokenizerConfig is what tokenizer_config.json says about tokenization.
// transformers 5 builds the pipeline by the class and adds the tokens named
// here, whatever tokenizer.json says.
type tokenizerConfig struct {
	Class              string                     `json:"tokenizer_class"`
	ChatTemplate       json.RawMessage            `json:"chat_template"`
	AddBOS             bool                       `json:"add_bos_token"`
	AddEOS             bool                       `json:"add_eos_token"`
	AddPrefixSpace     bool                       `json:"add_prefix_space"`
	SplitSpecial       bool                       `json:"split_special_tokens"`
	Additional         []json.RawMessage          `json:"additional_special_tokens"`
	ExtraSpecial       json.RawMessage            `json:"extra_special_tokens"`
	AddedTokensDecoder map[string]tokenDefinition `json:"added_tokens_decoder"`
	BOS                json.RawMessage            `json:"bos_token"`
	EOS                json.RawMessage            `json:"eos_token"`
	Unk                json.RawMessage            `json:"unk_token"`
	Pad                json.RawMessage            `json:"pad_token"`
	Sep                json.RawMessage            `json:"sep_token"`
	Cls                json.RawMessage            `json:"cls_token"`
	Mask               json.RawMessage            `json:"mask_token"`
}

// tokenDefinition is an added token of tokenizer.json or added_tokens_decoder.
type tokenDefinition struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// qwenTypes are the model types whose tokenizer transformers builds with its
// Qwen2Tokenizer class: the pipeline that tokenizerJSON.build checks for.
var qwenTypes = []string{"qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"}

// check refuses what would make transformers build another pipeline than
// tokenizer.json describes.
func (c *tokenizerConfig) check(modelType string, tj *tokenizerJSON) error {
	switch {
	case !slices.Contains(qwenTypes, modelType):
		return fmt.Errorf("model_type %q in config.json is not followed", modelType)
	case !slices.Contains([]string{"", "Qwen2Tokenizer", "Qwen2TokenizerFast"}, c.Class):
		return fmt.Errorf("tokenizer_class %q is not followed", c.Class)
	case c.AddBOS:
		return errors.New("add_bos_token is not followed")
	case c.AddEOS:
		return errors.New("add_eos_token is not followed")
	case c.AddPrefixSpace:
		return errors.New("add_prefix_space is not followed")
	case c.SplitSpecial:
		return errors.New("split_special_tokens is not followed")
	}
	known := make(map[string]tokenDefinition, len(tj.AddedTokens))
	for _, t := range tj.AddedTokens {
		known[t.Content] = t
	}
	for id, t := range c.AddedTokensDecoder {
		k, ok := known[t.Content]
		t.ID = k.ID
		if !ok || t != k || fmt.Sprint(k.ID) != id {
			return fmt.Errorf("added_tokens_decoder: token %q differs from tokenizer.json", t.Content)
		}
	}
	return c.checkSpecial(known)
}

// checkSpecial refuses special tokens that transformers would have to add.
func (c *tokenizerConfig) checkSpecial(known map[string]tokenDefinition) error {
	special := append([]json.RawMessage{c.BOS, c.EOS, c.Unk, c.Pad, c.Sep, c.Cls, c.Mask}, c.Additional...)
	if len(c.ExtraSpecial) > 0 && string(c.ExtraSpecial) != "null" {
		var list []json.RawMessage
		named := map[string]json.RawMessage{}
		if json.Unmarshal(c.ExtraSpecial, &list) != nil && json.Unmarshal(c.ExtraSpecial, &named) != nil {
			return errors.New("extra_special_tokens is neither a list nor an object")
		}
		special = append(special, list...)
		for _, t := range named {
			special = append(special, t)
		}
	}
	for _, raw := range special {
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		var t tokenDefinition
		if json.Unmarshal(raw, &t.Content) != nil && json.Unmarshal(raw, &t) != nil {
			return fmt.Errorf("a special token is neither a string nor an object: %q", raw)
		}
		if _, ok := known[t.Content]; !ok {
			return fmt.Errorf("special token %q is not an added token of tokenizer.json", t.Content)
		}
	}
	return nil
}
