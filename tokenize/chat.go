package tokenize

import "strings"

// Chat is a chat completion request as a [Template] sees it: what vLLM 0.32.0's
// own request handling leaves of the body (vllm/renderers/chat_utils.py), with
// the contents of every message as one string. It is read-only once parsed.
type Chat struct {
	Messages []Message
	// Tools is the request's tools as written, "" for none.
	Tools string
	// AddGenerationPrompt asks for the start of an assistant's message at the end.
	AddGenerationPrompt bool
	// ContinueFinalMessage asks for the last message to be left open.
	ContinueFinalMessage bool
	// EnableThinking is what the template sees under enable_thinking.
	EnableThinking Tristate

	tools      []value // as validated for the template
	truncation truncation
	size       int // bytes of text in it, for buffer sizes
}

// Tristate is a bool that may be undefined.
type Tristate uint8

// The states of a [Tristate].
const (
	Undefined Tristate = iota
	False
	True
)

// Message is one message of a chat.
type Message struct {
	Role string
	// Content is the text of the message; text parts are joined with "\n", and
	// missing content is empty.
	Content string
	// Reasoning is an assistant's reasoning, HasReasoning whether it was given.
	Reasoning    string
	HasReasoning bool
	// ToolCalls is an assistant's tool calls as written, "" for none.
	ToolCalls string

	calls []value
}

// chatFields are the members of a body that decide on its tokens.
type chatFields struct {
	messages, tools, addGeneration, continueFinal, addSpecial, echo  value
	kwargs, template, truncate, truncationSide, effort, kvParameters value
}

func (f *chatFields) field(key string) *value {
	switch key {
	case "messages":
		return &f.messages
	case "tools":
		return &f.tools
	case "add_generation_prompt":
		return &f.addGeneration
	case "continue_final_message":
		return &f.continueFinal
	case "add_special_tokens":
		return &f.addSpecial
	case "chat_template_kwargs":
		return &f.kwargs
	case "chat_template":
		return &f.template
	case "truncate_prompt_tokens":
		return &f.truncate
	case "truncation_side":
		return &f.truncationSide
	case "reasoning_effort":
		return &f.effort
	case "kv_transfer_params":
		return &f.kvParameters
	case "echo":
		return &f.echo
	}
	return nil
}

// parseChat reads the body of a chat completion request.
func parseChat(body []byte) (*Chat, error) {
	d, err := newDecoder(body)
	if err != nil {
		return nil, err
	}
	var f chatFields
	err = d.fields(func(key string) error {
		v := f.field(key)
		if v == nil {
			return d.skip(1)
		}
		var err error
		*v, err = d.value(1)
		return err
	})
	if err != nil {
		return nil, err
	}
	if d.surrogate {
		return nil, invalid("a string holds a lone surrogate")
	}
	chat := &Chat{size: len(body)}
	if err := chat.options(&f); err != nil {
		return nil, err
	}
	if chat.Messages, err = messages(f.messages); err != nil {
		return nil, err
	}
	if !f.tools.absent() {
		if chat.tools, err = tools(f.tools); err != nil {
			return nil, err
		}
		chat.Tools = f.tools.c.raw
	}
	return chat, nil
}

// options reads everything but messages and tools.
func (c *Chat) options(f *chatFields) error {
	var err error
	if c.AddGenerationPrompt, err = flag("add_generation_prompt", f.addGeneration, true); err != nil {
		return err
	}
	if c.ContinueFinalMessage, err = flag("continue_final_message", f.continueFinal, false); err != nil {
		return err
	}
	// vLLM 0.32.0, chat_completion/protocol.py: both given are refused there,
	// and the default of add_generation_prompt by transformers.
	if c.ContinueFinalMessage && c.AddGenerationPrompt {
		return invalid("continue_final_message and add_generation_prompt are both set")
	}
	if _, err := flag("add_special_tokens", f.addSpecial, false); err != nil {
		return err
	}
	if !f.template.absent() {
		return unsupported(ReasonTemplate, "the request brings a chat_template")
	}
	if !f.kvParameters.get("prompt_token_ids").absent() {
		return unsupported(ReasonReuse, "the request brings prompt_token_ids")
	}
	if c.truncation, err = parseTruncation(f.truncate, f.truncationSide); err != nil {
		return err
	}
	return c.thinking(f.kwargs, f.effort)
}

// thinking reads reasoning_effort and chat_template_kwargs. An effort sets
// enable_thinking unless the keywords do (build_chat_params in
// chat_completion/protocol.py).
func (c *Chat) thinking(kwargs, effort value) error {
	switch effort.kind {
	case kindMissing, kindNull:
	case kindString:
		switch effort.text {
		case "none":
			c.EnableThinking = False
		case "minimal", "low", "medium", "high", "xhigh", "max":
			c.EnableThinking = True
		default:
			return invalid("reasoning_effort is none of its values")
		}
	default:
		return invalid("reasoning_effort is not a string")
	}
	if kwargs.absent() {
		return nil
	}
	if kwargs.kind != kindObject {
		return invalid("chat_template_kwargs is not an object")
	}
	for i, key := range kwargs.c.keys {
		switch key {
		case "enable_thinking":
			// The template asks for the value false and nothing like it.
			c.EnableThinking = True
			if kwargs.c.values[i].kind == kindFalse {
				c.EnableThinking = False
			}
		case "add_generation_prompt", "continue_final_message", "documents":
			// The request's own fields win, or no followed template reads it.
		case "chat_template", "tokenize", "conversation", "messages", "tools", "padding", "truncation", "max_length",
			"return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "processor_kwargs":
			// Parameters of transformers' apply_chat_template.
			return unsupported(ReasonTemplateArgs, "keyword %q", key)
		}
	}
	return nil
}

func flag(name string, v value, missing bool) (bool, error) {
	if v.kind == kindMissing {
		return missing, nil
	}
	b, ok := v.lax()
	if !ok {
		return false, invalid("%s is not a boolean", name)
	}
	return b, nil
}

// truncation is how many tokens to keep, from the end; 0 for all.
type truncation int64

func parseTruncation(limit, side value) (truncation, error) {
	if limit.absent() {
		return 0, nil
	}
	n, ok := limit.integer()
	if !ok || n < -1 {
		return 0, invalid("truncate_prompt_tokens is not an integer of at least -1")
	}
	if n < 1 || !side.absent() {
		return 0, unsupported(ReasonTruncate, "it depends on the engine's context length")
	}
	return truncation(n), nil
}

// apply keeps the last tokens: vLLM sets truncation_side "left" for generation.
func (t truncation) apply(ids []uint32) []uint32 {
	if t > 0 && int64(t) < int64(len(ids)) {
		return ids[len(ids)-int(t):]
	}
	return ids
}

func messages(v value) ([]Message, error) {
	if v.kind != kindArray || len(v.c.values) == 0 {
		return nil, invalid("messages is not a list of messages")
	}
	out := make([]Message, len(v.c.values))
	for i, m := range v.c.values {
		if err := out[i].parse(m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// parse is _parse_chat_message_content of vllm/renderers/chat_utils.py for the
// content format "string".
func (m *Message) parse(v value) error {
	if v.kind != kindObject {
		return invalid("a message is not an object")
	}
	role := v.get("role")
	if role.kind != kindString {
		return invalid("a message's role is not a string")
	}
	m.Role = role.text
	var err error
	if m.Content, err = content(m.Role, v.get("content")); err != nil {
		return err
	}
	if m.Role != "assistant" {
		return nil
	}
	reasoning := v.get("reasoning")
	if reasoning.absent() {
		reasoning = v.get("reasoning_content")
	}
	switch {
	case reasoning.kind == kindString:
		m.Reasoning, m.HasReasoning = reasoning.text, true
	case !reasoning.absent():
		return invalid("a message's reasoning is not a string")
	}
	calls := v.get("tool_calls")
	if calls.absent() {
		return nil
	}
	if calls.kind != kindArray {
		return invalid("a message's tool_calls is not a list")
	}
	if len(calls.c.values) > 0 {
		m.ToolCalls = calls.c.raw
		m.calls, err = toolCalls(calls.c.values)
	}
	return err
}

// content joins the text of a message. Empty parts are left out, as vLLM does.
func content(role string, v value) (string, error) {
	switch v.kind {
	case kindMissing, kindNull:
		return "", nil
	case kindString:
		return withoutBilling(role, v.text), nil
	case kindArray:
	default:
		return "", invalid("a message's content is neither a string nor a list")
	}
	texts := make([]string, 0, len(v.c.values))
	for _, part := range v.c.values {
		text, plain, err := partText(part)
		if err != nil {
			return "", err
		}
		if plain {
			text = withoutBilling(role, text)
		}
		if text != "" {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "\n"), nil
}

// partText returns the text of a content part; plain says that it is of the
// kind that withoutBilling looks at.
func partText(part value) (text string, plain bool, err error) {
	if part.kind == kindString {
		return part.text, true, nil
	}
	if part.kind != kindObject {
		return "", false, invalid("a content part is neither an object nor a string")
	}
	t := part.get("type")
	key := "text"
	switch {
	case !part.get("uuid").absent():
		return "", false, unsupported(ReasonImages, "a content part has a uuid")
	case t.kind != kindString:
		return "", false, unsupported(ReasonContent, "a content part has no type")
	case t.text == "text":
		plain = true
	case t.text == "refusal", t.text == "thinking":
		key = t.text
	case t.text == "tool_reference":
		return "", false, unsupported(ReasonContent, "content part of type %q", t.text)
	case strings.HasPrefix(t.text, "image"), strings.HasPrefix(t.text, "video"), strings.HasPrefix(t.text, "audio"),
		t.text == "input_audio", t.text == "input_image":
		return "", false, unsupported(ReasonImages, "a content part holds media")
	case t.text == "prompt_embeds":
		return "", false, unsupported(ReasonEmbeds, "a content part holds embeddings")
	default:
		return "", false, invalid("a content part's type is not known")
	}
	s := part.get(key)
	if s.kind != kindString {
		return "", false, invalid("a content part's text is not a string")
	}
	return s.text, plain, nil
}

// withoutBilling drops the attribution line that a coding client puts at the
// start of system prompts (_strip_claude_code_billing_header in
// vllm/renderers/chat_utils.py).
func withoutBilling(role, text string) string {
	if role != "system" || !strings.HasPrefix(text, "x-anthropic-billing-header") {
		return text
	}
	_, rest, _ := strings.Cut(text, "\n")
	return rest
}
