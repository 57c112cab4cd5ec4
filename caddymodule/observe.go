package caddymodule

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// observation is what passed in a response's body.
type observation struct {
	any      bool   // at least one byte
	err      error  // how reading ended, nil after a clean end
	streamed bool   // server-sent events
	chunks   int    // events that carry a choice, the opening role chunk of a chat not counted
	length   bool   // finish_reason "length"
	tokens   int    // usage.completion_tokens; 0 if the engine did not say
	cached   int    // usage.prompt_tokens_details.cached_tokens; -1 if the engine did not say
	prompt   int    // usage.prompt_tokens; 0 if the engine did not say
	text     string // the generated text; empty if it was not followed
}

// generated is what a response generated: how many tokens, and which ones if that is certain.
//
// The number is the engine's usage; else, for a text that was followed, the number of its tokens and one for the token
// that ended it; else the limit that the request set, if that is what ended the response; else the stream's chunks, of
// which engines send one per token while the client keeps up. The tokens are those of the text if there are as many as
// the number says: sampled tokens need not be those that a tokenizer would make of the text.
func (o observation) generated(maxTokens int, encode func(string) []uint32) (count int, tokens []uint32) {
	if o.text != "" && encode != nil {
		tokens = encode(o.text)
	}
	end := 1 // the token that said stop is counted, and never computed
	if o.length {
		end = 0
	}
	switch {
	case o.tokens > 0:
		count = o.tokens
	case o.length && maxTokens > 0 && o.err == nil:
		count = maxTokens
	case len(tokens) > 0 && o.err == nil:
		count = len(tokens) + end
	default:
		count = o.chunks
	}
	if len(tokens) != count && len(tokens) != count-1 {
		return count, nil
	}
	return count, tokens
}

// observedBody passes a response's body on and reads along. Of the text it keeps at most maxOutputText, until the end.
type observedBody struct {
	io.ReadCloser
	first func()            // called with the first byte; may be nil
	done  func(observation) // called once, at the end

	peeked  []byte
	readErr error
	once    sync.Once

	mu   sync.Mutex
	scan usageScanner
	text *outputText // nil when the text is not wanted
}

const peekSize = 4 << 10

func observe(body io.ReadCloser, first func(), done func(observation)) *observedBody {
	return &observedBody{ReadCloser: body, first: first, done: done, scan: newUsageScanner()}
}

// peek waits for the first bytes of the body. It fails when the body breaks before any; an empty body is no failure.
func (b *observedBody) peek() error {
	buf := make([]byte, peekSize)
	n, err := b.ReadCloser.Read(buf)
	for n == 0 && err == nil {
		n, err = b.ReadCloser.Read(buf)
	}
	if n == 0 && !errors.Is(err, io.EOF) {
		return err
	}
	b.saw(buf[:n])
	b.peeked, b.readErr = buf[:n], err
	return nil
}

// Read hands on what was peeked, then the rest as it comes.
func (b *observedBody) Read(p []byte) (int, error) {
	if len(b.peeked) > 0 {
		n := copy(p, b.peeked)
		b.peeked = b.peeked[n:]
		return n, nil
	}
	if b.readErr != nil {
		b.end(b.readErr)
		return 0, b.readErr
	}
	n, err := b.ReadCloser.Read(p)
	b.saw(p[:n])
	if err != nil {
		b.end(err)
	}
	return n, err
}

// Close ends the observation, if reading has not.
func (b *observedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(errors.New("closed before the end"))
	return err
}

func (b *observedBody) saw(p []byte) {
	if len(p) == 0 {
		return
	}
	b.mu.Lock()
	started := b.scan.seen.any
	b.scan.write(p)
	if b.text != nil {
		b.text.write(p)
	}
	b.mu.Unlock()
	if !started && b.first != nil {
		b.first()
	}
}

func (b *observedBody) end(err error) {
	b.once.Do(func() {
		b.mu.Lock()
		o := b.scan.observation()
		if b.text != nil && !b.text.over {
			o.text = string(b.text.text)
		}
		b.mu.Unlock()
		if !errors.Is(err, io.EOF) {
			o.err = err
		}
		b.done(o)
	})
}

// usageScanner finds usage numbers and counts chunks in a body that comes in arbitrary pieces. It looks for JSON keys
// with their quotes, which generated text cannot spell: inside a string every quote is escaped, so that the closing
// quote of a key is always preceded by a backslash there.
type usageScanner struct {
	seen   observation
	opened bool   // the first bytes have told whether this is a stream
	tail   []byte // what may be the start of a pattern or number that goes on
	head   []byte
}

// keepBytes is longer than the longest pattern with its number.
const keepBytes = 64

var (
	keyCompletion = []byte(`"completion_tokens":`)
	keyPrompt     = []byte(`"prompt_tokens":`)
	keyCached     = []byte(`"cached_tokens":`)
	keyLength     = []byte(`"finish_reason":"length"`)
	keyChunk      = []byte(`"choices":[{`)
	keyRole       = []byte(`"delta":{"role":`)
)

func newUsageScanner() usageScanner { return usageScanner{seen: observation{cached: -1}} }

func (s *usageScanner) write(p []byte) {
	s.seen.any = s.seen.any || len(p) > 0
	if !s.opened {
		s.head = append(s.head, p[:min(len(p), len("data:"))]...)
		s.opened = len(s.head) >= len("data:")
		s.seen.streamed = bytes.HasPrefix(s.head, []byte("data:")) || bytes.HasPrefix(s.head, []byte(":"))
	}
	old := len(s.tail)
	s.tail = append(s.tail, p...)
	s.seen.chunks += s.count(keyChunk, old) - s.count(keyRole, old)
	s.seen.length = s.seen.length || s.count(keyLength, old) > 0
	s.number(keyCompletion, &s.seen.tokens)
	s.number(keyPrompt, &s.seen.prompt)
	s.number(keyCached, &s.seen.cached)
	if extra := len(s.tail) - keepBytes; extra > 0 {
		s.tail = s.tail[:copy(s.tail, s.tail[extra:])]
	}
}

// count counts the occurrences of pattern that end behind the first old bytes of the tail.
func (s *usageScanner) count(pattern []byte, old int) int {
	return bytes.Count(s.tail[max(0, old-len(pattern)+1):], pattern)
}

// number keeps the last complete number behind key.
func (s *usageScanner) number(key []byte, to *int) {
	i := bytes.LastIndex(s.tail, key)
	if i < 0 {
		return
	}
	rest := bytes.TrimLeft(s.tail[i+len(key):], " ")
	n, digits := 0, 0
	for digits < len(rest) && digits < 10 && rest[digits] >= '0' && rest[digits] <= '9' {
		n = n*10 + int(rest[digits]-'0')
		digits++
	}
	if digits > 0 && digits < len(rest) {
		*to = n
	}
}

func (s *usageScanner) observation() observation {
	o := s.seen
	if !o.streamed {
		o.chunks = 0
	}
	return o
}
