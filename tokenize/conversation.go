package tokenize

import (
	"bytes"
	"slices"
	"strings"
)

// What vLLM and transformers do to a conversation around any template that
// does not know the role "developer" and reads contents as strings.

// systemFirst is _convert_developer_to_system and _consolidate_system_messages
// of vllm/renderers/hf.py (0.32.0): when a developer speaks, its messages count
// as the system's, and all of the system's become the first message.
func systemFirst(messages []Message) []Message {
	if !slices.ContainsFunc(messages, func(m Message) bool { return m.Role == "developer" }) {
		return messages
	}
	out := make([]Message, 1, len(messages)+1)
	var texts []string
	for _, m := range messages {
		if m.Role != "developer" && m.Role != "system" {
			out = append(out, m)
		} else if m.Content != "" {
			texts = append(texts, m.Content)
		}
	}
	out[0] = Message{Role: "system", Content: strings.Join(texts, "\n\n")}
	return out
}

// continuationTag marks the place where a continued message's text ends
// (render_jinja_template in transformers/utils/chat_template_utils.py, 5.19).
const continuationTag = "CONTINUE_FINAL_MESSAGE_TAG "

// withContinuation appends the tag to the last message.
func withContinuation(messages []Message) []Message {
	messages = slices.Clone(messages)
	messages[len(messages)-1].Content += continuationTag
	return messages
}

// cutContinuation cuts the prompt, dst from start on, at the tag. final is the
// last message's text, which must have come through the template.
func cutContinuation(dst []byte, start int, final string) ([]byte, error) {
	prompt := dst[start:]
	tag := bytes.LastIndex(prompt, []byte(strings.TrimSpace(continuationTag)))
	if tag < 0 || !bytes.Contains(prompt, []byte(trimPython(final))) {
		return dst[:start], invalid("the final message to continue is not in the prompt")
	}
	if bytes.HasPrefix(prompt[tag:], []byte(continuationTag)) {
		return dst[:start+tag], nil
	}
	return append(dst[:start], strings.TrimRightFunc(string(prompt[:tag]), isPythonSpace)...), nil
}

// trimPython is Python's str.strip.
func trimPython(s string) string { return strings.TrimFunc(s, isPythonSpace) }

// isPythonSpace is Python's str.isspace: White_Space of Unicode, which \s of the
// regex engine is too, and the separators U+001C to U+001F.
func isPythonSpace(r rune) bool {
	return r >= 0x1c && r <= 0x1f || classOf(r)&classMask == classSpace
}
