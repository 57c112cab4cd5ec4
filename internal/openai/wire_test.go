package openai

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAppendStringEscapesAsPythonDoes(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", `""`},
		{"a\"b\\c/", `"a\"b\\c/"`},
		{"\n\r\t\b\f\x00\x1f\x7f", `"\n\r\t\b\f\u0000\u001f` + "\x7f\""},
		{"<&>\u2028é𝄞", "\"<&>\u2028é𝄞\""},
		{"a\xffb", "\"a\uFFFDb\""},
	} {
		if got := string(AppendString(nil, tc.in)); got != tc.want {
			t.Errorf("%q: %s, want %s", tc.in, got, tc.want)
		}
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\u2028\xff")
	f.Fuzz(func(t *testing.T, s string) {
		var got string
		if err := json.Unmarshal(AppendString(nil, s), &got); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(s) && got != s {
			t.Errorf("%q came back as %q", s, got)
		}
	})
}

func TestBodiesAreJSON(t *testing.T) {
	h := Head{ID: "chatcmpl-\"1", Created: 5, Model: "m"}
	u := Usage{PromptTokens: 3, CompletionTokens: 2, Details: true, CachedTokens: 1}
	choices := []Choice{{Text: "a", FinishReason: "stop", StopReason: StopReason{Kind: StopText, Text: "x"}}, {Index: 1}}
	chunk := Chunk{Text: "a", FinishReason: "stop", StopReason: StopReason{Kind: StopToken, Token: 9}, Usage: &u, Fingerprint: "f"}
	role := Chunk{Role: "assistant", PromptTokenIDs: []uint32{1, 2}, Usage: &u}
	for name, body := range map[string][]byte{
		"chat":             AppendChat(nil, h, choices, u, "f", []uint32{1}),
		"completion":       AppendCompletion(nil, h, choices, u, ""),
		"chat role":        AppendChatChunk(nil, h, &role),
		"chat chunk":       AppendChatChunk(nil, h, &chunk),
		"completion chunk": AppendCompletionChunk(nil, h, &chunk),
		"chat usage":       AppendUsageChunk(nil, h, true, &u, "f"),
		"completion usage": AppendUsageChunk(nil, h, false, &u, "f"),
	} {
		text := strings.TrimSuffix(strings.TrimPrefix(string(body), "data: "), "\n\n")
		if !json.Valid([]byte(text)) {
			t.Errorf("%s: %s", name, text)
		}
	}
}
