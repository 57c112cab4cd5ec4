package openai

import (
	"strconv"
	"unicode/utf8"
)

// The types of this file are the response bodies of vLLM 0.32.0 (entrypoints/openai/chat_completion/protocol.py and
// completion/protocol.py), written byte for byte as that server writes them: which members are null and which are left
// out differs from chunk to chunk, so each has an Append method of its own rather than struct tags. Members that the
// API has but that are never set here (refusal, logprobs, kv_transfer_params, ...) are written as vLLM writes them when
// unset. An Append method appends to dst and returns the longer slice, as append does.

// Usage counts the tokens of a response.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	// Details adds prompt_tokens_details, which vLLM does with --enable-prompt-tokens-details.
	Details bool
	// CachedTokens are the prompt tokens that the prefix cache served.
	CachedTokens int
	// CreatedCacheTokens are the prompt tokens newly put into the prefix cache; only chat responses carry them.
	CreatedCacheTokens int
}

// Choice is one generated sequence of a response that is not streamed.
type Choice struct {
	Index        int
	Text         string
	FinishReason string
	StopReason   StopReason
	// TokenIDs are the generated tokens; nil is written as null, as without return_token_ids.
	TokenIDs []uint32
	// PromptTokenIDs is used by completions, where each choice carries its own prompt.
	PromptTokenIDs []uint32
}

// StopReason says which stop string or stop token ended a sequence. The zero value is null.
type StopReason struct {
	Text  string
	Token uint32
	Kind  StopKind
}

// StopKind tells what a StopReason holds.
type StopKind uint8

// The kinds of stop reasons.
const (
	StopNone StopKind = iota
	StopText
	StopToken
)

// Chunk is one event of a stream.
type Chunk struct {
	Index int
	// Role is set in the first chunk of a chat, which has no tokens.
	Role string
	// Text is what this chunk adds.
	Text string
	// FinishReason is empty until the sequence's last chunk.
	FinishReason string
	StopReason   StopReason
	// TokenIDs are this chunk's tokens; nil is null.
	TokenIDs []uint32
	// PromptTokenIDs are given once, in the first chunk; nil is null.
	PromptTokenIDs []uint32
	// Usage is written when not nil (continuous_usage_stats).
	Usage *Usage
	// Fingerprint is written when not empty.
	Fingerprint string
}

// Head is what all bodies of one response share.
type Head struct {
	ID      string
	Created int64 // seconds since 1970
	Model   string
}

func (h Head) appendOpen(dst []byte, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = AppendString(dst, h.ID)
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, h.Created, 10)
	dst = append(dst, `,"model":`...)
	dst = AppendString(dst, h.Model)
	return append(dst, `,"choices":[`...)
}

// AppendChat appends the body of a chat completion. promptTokenIDs is nil without return_token_ids.
func AppendChat(dst []byte, h Head, choices []Choice, u Usage, fingerprint string, promptTokenIDs []uint32) []byte {
	dst = h.appendOpen(dst, "chat.completion")
	for i := range choices {
		c := &choices[i]
		dst = appendComma(dst, i)
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(c.Index), 10)
		dst = append(dst, `,"message":{"role":"assistant","content":`...)
		dst = AppendString(dst, c.Text)
		dst = append(dst, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null`...)
		dst = c.appendFinish(dst)
		dst = append(dst, `,"token_ids":`...)
		dst = AppendTokenIDs(dst, c.TokenIDs)
		dst = append(dst, `,"routed_experts":null}`...)
	}
	dst = appendTail(dst, fingerprint, u, true)
	dst = append(dst, `,"prompt_logprobs":null,"prompt_token_ids":`...)
	dst = AppendTokenIDs(dst, promptTokenIDs)
	return append(dst, `,"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

// AppendCompletion appends the body of a text completion.
func AppendCompletion(dst []byte, h Head, choices []Choice, u Usage, fingerprint string) []byte {
	dst = h.appendOpen(dst, "text_completion")
	for i := range choices {
		c := &choices[i]
		dst = appendComma(dst, i)
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(c.Index), 10)
		dst = append(dst, `,"text":`...)
		dst = AppendString(dst, c.Text)
		dst = append(dst, `,"logprobs":null`...)
		dst = c.appendFinish(dst)
		dst = append(dst, `,"token_ids":`...)
		dst = AppendTokenIDs(dst, c.TokenIDs)
		dst = append(dst, `,"prompt_logprobs":null,"prompt_token_ids":`...)
		dst = AppendTokenIDs(dst, c.PromptTokenIDs)
		dst = append(dst, `,"routed_experts":null}`...)
	}
	dst = appendTail(dst, fingerprint, u, false)
	return append(dst, `,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

func (c *Choice) appendFinish(dst []byte) []byte {
	dst = append(dst, `,"finish_reason":`...)
	dst = appendStringOrNull(dst, c.FinishReason)
	dst = append(dst, `,"stop_reason":`...)
	return c.StopReason.append(dst)
}

func appendTail(dst []byte, fingerprint string, u Usage, chat bool) []byte {
	dst = append(dst, `],"service_tier":null,"system_fingerprint":`...)
	dst = appendStringOrNull(dst, fingerprint)
	dst = append(dst, `,"usage":`...)
	dst = u.appendCounts(dst)
	dst = append(dst, `,"prompt_tokens_details":`...)
	if !u.Details {
		dst = append(dst, `null`...)
	} else {
		dst = append(dst, `{"cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(u.CachedTokens), 10)
		dst = append(dst, `,"created_cache_tokens":`...)
		if chat {
			dst = strconv.AppendInt(dst, int64(u.CreatedCacheTokens), 10)
		} else {
			dst = append(dst, `null`...)
		}
		dst = append(dst, `,"multimodal_tokens":null}`...)
	}
	return append(dst, `,"completion_tokens_details":null}`...)
}

func (u *Usage) appendCounts(dst []byte) []byte {
	dst = append(dst, `{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens+u.CompletionTokens), 10)
	dst = append(dst, `,"completion_tokens":`...)
	return strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
}

// AppendChatChunk appends one event of a chat stream, "data: " and blank line included.
func AppendChatChunk(dst []byte, h Head, c *Chunk) []byte {
	dst = h.appendOpen(append(dst, "data: "...), "chat.completion.chunk")
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(c.Index), 10)
	dst = append(dst, `,"delta":{`...)
	if c.Role != "" {
		dst = append(dst, `"role":`...)
		dst = AppendString(dst, c.Role)
		dst = append(dst, ',')
	}
	dst = append(dst, `"content":`...)
	dst = AppendString(dst, c.Text)
	dst = append(dst, `},"logprobs":null,"finish_reason":`...)
	dst = appendStringOrNull(dst, c.FinishReason)
	if c.Role == "" {
		if c.FinishReason != "" {
			dst = append(dst, `,"stop_reason":`...)
			dst = c.StopReason.append(dst)
		}
		dst = append(dst, `,"token_ids":`...)
		dst = AppendTokenIDs(dst, c.TokenIDs)
	}
	dst = append(dst, `}]`...)
	if c.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = c.Usage.appendCounts(dst)
		dst = append(dst, `,"completion_tokens_details":null}`...)
	}
	if c.Role != "" {
		dst = append(dst, `,"prompt_token_ids":`...)
		dst = AppendTokenIDs(dst, c.PromptTokenIDs)
		dst = append(dst, `,"prompt_text":null`...)
	}
	return appendChunkEnd(dst, c.Fingerprint)
}

// AppendCompletionChunk appends one event of a completion stream, "data: " and blank line included.
func AppendCompletionChunk(dst []byte, h Head, c *Chunk) []byte {
	dst = h.appendOpen(append(dst, "data: "...), "text_completion")
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(c.Index), 10)
	dst = append(dst, `,"text":`...)
	dst = AppendString(dst, c.Text)
	dst = append(dst, `,"logprobs":null,"finish_reason":`...)
	dst = appendStringOrNull(dst, c.FinishReason)
	dst = append(dst, `,"stop_reason":`...)
	dst = c.StopReason.append(dst)
	dst = append(dst, `,"prompt_token_ids":`...)
	dst = AppendTokenIDs(dst, c.PromptTokenIDs)
	dst = append(dst, `,"token_ids":`...)
	dst = AppendTokenIDs(dst, c.TokenIDs)
	dst = append(dst, `}]`...)
	if c.Usage != nil {
		dst = append(dst, `,"usage":`...)
		dst = append(c.Usage.appendCounts(dst), '}')
	}
	return appendChunkEnd(dst, c.Fingerprint)
}

// AppendUsageChunk appends the event that include_usage adds before the end of a stream: usage and no choices.
func AppendUsageChunk(dst []byte, h Head, chat bool, u *Usage, fingerprint string) []byte {
	object := "text_completion"
	if chat {
		object = "chat.completion.chunk"
	}
	dst = h.appendOpen(append(dst, "data: "...), object)
	dst = append(dst, `],"usage":`...)
	dst = u.appendCounts(dst)
	if u.Details {
		dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(u.CachedTokens), 10)
		if chat {
			dst = append(dst, `,"created_cache_tokens":`...)
			dst = strconv.AppendInt(dst, int64(u.CreatedCacheTokens), 10)
		}
		dst = append(dst, '}')
	}
	return appendChunkEnd(append(dst, '}'), fingerprint)
}

// AppendDone appends the event that ends a stream.
func AppendDone(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

func appendChunkEnd(dst []byte, fingerprint string) []byte {
	if fingerprint != "" {
		dst = append(dst, `,"system_fingerprint":`...)
		dst = AppendString(dst, fingerprint)
	}
	return append(dst, "}\n\n"...)
}

func (r StopReason) append(dst []byte) []byte {
	switch r.Kind {
	case StopText:
		return AppendString(dst, r.Text)
	case StopToken:
		return strconv.AppendUint(dst, uint64(r.Token), 10)
	default:
		return append(dst, `null`...)
	}
}

// AppendTokenIDs appends a JSON array of ids, or null for a nil slice.
func AppendTokenIDs(dst []byte, ids []uint32) []byte {
	if ids == nil {
		return append(dst, `null`...)
	}
	dst = append(dst, '[')
	for i, id := range ids {
		dst = appendComma(dst, i)
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

func appendComma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

func appendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, `null`...)
	}
	return AppendString(dst, s)
}

const hexDigits = "0123456789abcdef"

// AppendString appends s as a JSON string the way Python's json.dumps(ensure_ascii=False) and pydantic do: only quotes,
// backslashes and control characters below U+0020 are escaped. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[start:i]...), "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
		}
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}
