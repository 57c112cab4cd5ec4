package tokenize

import "strings"

// qwen3Hash is the SHA-256 of Qwen3's chat template, as in
// tokenizer_config.json of Qwen/Qwen3-8B and its siblings of April 2025.
const qwen3Hash = "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5"

// qwen3Template follows that template, statement by statement.
type qwen3Template struct{}

const (
	qwen3ToolsBefore = "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" +
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
	qwen3ToolsAfter = "\n</tools>\n\nFor each function call, return a json object with function name and arguments " +
		"within <tool_call></tool_call> XML tags:\n<tool_call>\n" +
		`{"name": <function-name>, "arguments": <args-json-object>}` + "\n</tool_call><|im_end|>\n"
)

// Render implements [Template].
func (qwen3Template) Render(dst []byte, chat *Chat) ([]byte, error) {
	messages := systemFirst(chat.Messages)
	start, final := len(dst), messages[len(messages)-1].Content
	if chat.ContinueFinalMessage {
		messages = withContinuation(messages)
	}
	dst = qwen3System(dst, chat, messages)
	query := qwen3LastQuery(messages)
	for i := range messages {
		m := &messages[i]
		switch {
		case m.Role == "user", m.Role == "system" && i > 0:
			dst = append(dst, "<|im_start|>"...)
			dst = append(dst, m.Role...)
			dst = append(dst, '\n')
			dst = append(dst, m.Content...)
			dst = append(dst, "<|im_end|>\n"...)
		case m.Role == "assistant":
			dst = qwen3Assistant(dst, m, i > query, i == len(messages)-1)
		case m.Role == "tool":
			if i == 0 || messages[i-1].Role != "tool" {
				dst = append(dst, "<|im_start|>user"...)
			}
			dst = append(dst, "\n<tool_response>\n"...)
			dst = append(dst, m.Content...)
			dst = append(dst, "\n</tool_response>"...)
			if i == len(messages)-1 || messages[i+1].Role != "tool" {
				dst = append(dst, "<|im_end|>\n"...)
			}
		}
	}
	if chat.AddGenerationPrompt {
		dst = append(dst, "<|im_start|>assistant\n"...)
		if chat.EnableThinking == False {
			dst = append(dst, "<think>\n\n</think>\n\n"...)
		}
	}
	if chat.ContinueFinalMessage {
		return cutContinuation(dst, start, final)
	}
	return dst, nil
}

func qwen3System(dst []byte, chat *Chat, messages []Message) []byte {
	system := messages[0].Role == "system"
	if len(chat.tools) == 0 {
		if system {
			dst = append(dst, "<|im_start|>system\n"...)
			dst = append(dst, messages[0].Content...)
			dst = append(dst, "<|im_end|>\n"...)
		}
		return dst
	}
	dst = append(dst, "<|im_start|>system\n"...)
	if system {
		dst = append(dst, messages[0].Content...)
		dst = append(dst, "\n\n"...)
	}
	dst = append(dst, qwen3ToolsBefore...)
	for _, t := range chat.tools {
		dst = append(dst, '\n')
		dst = appendPython(dst, t)
	}
	return append(dst, qwen3ToolsAfter...)
}

// qwen3LastQuery is the place of the last message that a user wrote: not one
// that hands a tool's response back.
func qwen3LastQuery(messages []Message) int {
	for i := len(messages) - 1; i >= 0; i-- {
		m := &messages[i]
		if m.Role == "user" && !(strings.HasPrefix(m.Content, "<tool_response>") &&
			strings.HasSuffix(m.Content, "</tool_response>")) {
			return i
		}
	}
	return len(messages) - 1
}

func qwen3Assistant(dst []byte, m *Message, afterQuery, last bool) []byte {
	content, reasoning := m.Content, ""
	if m.HasReasoning {
		reasoning = m.Reasoning
	} else if i := strings.LastIndex(content, "</think>"); i >= 0 {
		before, _, _ := strings.Cut(content, "</think>")
		before = strings.TrimRight(before, "\n")
		reasoning = strings.TrimLeft(before[strings.LastIndex("<think>"+before, "<think>"):], "\n")
		content = strings.TrimLeft(content[i+len("</think>"):], "\n")
	}
	dst = append(dst, "<|im_start|>assistant\n"...)
	if afterQuery && (last || reasoning != "") {
		dst = append(dst, "<think>\n"...)
		dst = append(dst, strings.Trim(reasoning, "\n")...)
		dst = append(dst, "\n</think>\n\n"...)
		dst = append(dst, strings.TrimLeft(content, "\n")...)
	} else {
		dst = append(dst, content...)
	}
	for i, call := range m.calls {
		if i > 0 || content != "" {
			dst = append(dst, '\n')
		}
		dst = append(dst, "<tool_call>\n{\"name\": \""...)
		dst = append(dst, call.get("name").text...)
		dst = append(dst, `", "arguments": `...)
		dst = appendPython(dst, call.get("arguments"))
		dst = append(dst, "}\n</tool_call>"...)
	}
	return append(dst, "<|im_end|>\n"...)
}
