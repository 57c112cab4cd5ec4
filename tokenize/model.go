package tokenize

// Tokenizer maps text to token ids and back. Implementations are safe for
// concurrent use.
type Tokenizer interface {
	// Append appends the ids of text to dst. Added tokens that the text
	// spells are recognised, as Hugging Face tokenizers do. No special tokens
	// are put around the text. The text is not kept.
	Append(dst []uint32, text string) ([]uint32, error)
	// Decode appends the text of ids to dst, special tokens included. Any
	// ids give valid UTF-8; what cannot be decoded gives U+FFFD.
	Decode(dst []byte, ids []uint32) []byte
}

// Template renders a chat to the text of the prompt. Implementations are safe
// for concurrent use.
type Template interface {
	// Render appends the prompt to dst. Errors are [UnsupportedError] or
	// [InvalidError].
	Render(dst []byte, chat *Chat) ([]byte, error)
}

// TokenTemplate is a [Template] that makes token ids itself, for formats whose
// special tokens cannot be spelled in text.
type TokenTemplate interface {
	Template
	// AppendChat appends the ids of the prompt to dst, with Render's errors.
	AppendChat(dst []uint32, chat *Chat) ([]uint32, error)
}

// Prompt is what a request asks the engine to compute.
type Prompt struct {
	// Tokens are the ids of the prompt, owned by the caller.
	Tokens []uint32
	// Count is the number of prompts in the request; always 1, as batches
	// are refused.
	Count int
}

// Model is one model's way from a request to token ids. It is safe for
// concurrent use.
type Model struct {
	name        string
	fingerprint string
	tokenizer   Tokenizer
	template    Template // nil when chats are not followed
	noTemplate  string   // why template is nil
}

// Name says what the model was made from: the directory's base name, or "sim".
func (m *Model) Name() string { return m.name }

// Fingerprint identifies everything that determines the ids, as hexadecimal
// digits: models with equal fingerprints give equal ids for every request.
func (m *Model) Fingerprint() string { return m.fingerprint }

// Tokenizer returns the model's tokenizer.
func (m *Model) Tokenizer() Tokenizer { return m.tokenizer }

// ChatSupport returns nil when the model's chat template is followed, else the
// [UnsupportedError] that every call of Chat gives.
func (m *Model) ChatSupport() error {
	if m.template == nil {
		return &UnsupportedError{Reason: ReasonTemplate, Detail: m.noTemplate}
	}
	return nil
}

// Render appends the text of a chat request's prompt to dst, for people to
// look at. Errors are [UnsupportedError] or [InvalidError].
func (m *Model) Render(dst []byte, body []byte) ([]byte, error) {
	chat, err := m.parseChat(body)
	if err != nil {
		return dst, err
	}
	return m.template.Render(dst, chat)
}

// Chat tokenizes the body of a chat completion request. Errors are
// [UnsupportedError] or [InvalidError].
func (m *Model) Chat(body []byte) (Prompt, error) {
	chat, err := m.parseChat(body)
	if err != nil {
		return Prompt{}, err
	}
	ids, err := m.appendChat(nil, chat)
	if err != nil {
		return Prompt{}, err
	}
	return Prompt{Tokens: chat.truncation.apply(ids), Count: 1}, nil
}

// Completion tokenizes the body of a completion request. Errors are
// [UnsupportedError] or [InvalidError].
func (m *Model) Completion(body []byte) (Prompt, error) {
	req, err := parseCompletion(body)
	if err != nil {
		return Prompt{}, err
	}
	ids := req.ids
	if ids == nil {
		ids, err = m.tokenizer.Append(make([]uint32, 0, len(req.text)/3+1), req.text)
		if err != nil {
			return Prompt{}, err
		}
	}
	if len(ids) == 0 {
		return Prompt{}, invalid("the prompt has no tokens")
	}
	return Prompt{Tokens: req.truncation.apply(ids), Count: 1}, nil
}

func (m *Model) parseChat(body []byte) (*Chat, error) {
	if err := m.ChatSupport(); err != nil {
		return nil, err
	}
	return parseChat(body)
}

func (m *Model) appendChat(dst []uint32, chat *Chat) ([]uint32, error) {
	if t, ok := m.template.(TokenTemplate); ok {
		return t.AppendChat(dst, chat)
	}
	text, err := m.template.Render(make([]byte, 0, chat.size+256), chat)
	if err != nil {
		return dst, err
	}
	if dst == nil {
		dst = make([]uint32, 0, len(text)/3+16)
	}
	return m.tokenizer.Append(dst, string(text))
}
