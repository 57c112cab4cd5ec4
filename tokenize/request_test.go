package tokenize

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// outcome names what came of a request: "ok", an UnsupportedError's reason, or
// "invalid".
func outcome(err error) string {
	var u *UnsupportedError
	var i *InvalidError
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &u):
		return u.Reason
	case errors.As(err, &i):
		return "invalid"
	}
	return "another error: " + err.Error()
}

func TestChatOutcomes(t *testing.T) {
	t.Parallel()
	const hi = `"messages":[{"role":"user","content":"hi"}]`
	part := func(p string) string { return `{"messages":[{"role":"user","content":[` + p + `]}]}` }
	call := func(c string) string { return `{"messages":[{"role":"assistant","tool_calls":` + c + `}]}` }
	for _, tc := range []struct{ name, body, want string }{
		{"plain", `{` + hi + `}`, "ok"},
		{"unknown members are passed over", `{"x":[{"y":"z\u0041"},null,-1.5e3,true],` + hi + `}`, "ok"},
		{"keys match exactly", `{"Messages":[{"role":"user","content":"hi"}]}`, "invalid"},
		{"no messages", `{}`, "invalid"},
		{"empty messages", `{"messages":[]}`, "invalid"},
		{"not an object", `[]`, "invalid"},
		{"empty body", ``, "invalid"},
		{"two values", `{` + hi + `} {}`, "invalid"},
		{"trailing comma", `{` + hi + `,}`, "invalid"},
		{"leading zero", `{"n":01,` + hi + `}`, "invalid"},
		{"control character", "{\"n\":\"\n\"," + hi + `}`, "invalid"},
		{"bad escape", `{"n":"\x",` + hi + `}`, "invalid"},
		{"short escape", `{"n":"\u12",` + hi + `}`, "invalid"},
		{"single quotes", `{'n':1,` + hi + `}`, "invalid"},
		{"Python's numbers", `{"n":[NaN,Infinity,-Infinity],` + hi + `}`, "ok"},
		{"invalid UTF-8", "{\"n\":\"\xff\"," + hi + `}`, "invalid"},
		{"byte order mark", "\xef\xbb\xbf{" + hi + `}`, ReasonEncoding},
		{"UTF-16", "{\x00\"\x00", ReasonEncoding},
		{"a key outside ASCII", `{"ｆ":1,` + hi + `}`, "ok"},
		{"lone surrogate", `{"messages":[{"role":"user","content":"\ud83d"}]}`, "invalid"},
		{"surrogates in the wrong order", `{"messages":[{"role":"user","content":"\ude00\ud83d"}]}`, "invalid"},
		{"role missing", `{"messages":[{"content":"hi"}]}`, "invalid"},
		{"role of another type", `{"messages":[{"role":1,"content":"hi"}]}`, "invalid"},
		{"message of another type", `{"messages":["hi"]}`, "invalid"},
		{"content of another type", `{"messages":[{"role":"user","content":1}]}`, "invalid"},
		{"null content", `{"messages":[{"role":"assistant","content":null}]}`, "ok"},
		{"string part", part(`"a"`), "ok"},
		{"refusal part", part(`{"type":"refusal","refusal":"a"}`), "ok"},
		{"text missing", part(`{"type":"text"}`), "invalid"},
		{"input_text part", part(`{"type":"input_text","text":"a"}`), "invalid"},
		{"image part", part(`{"type":"image_url","image_url":{"url":"x"}}`), ReasonImages},
		{"audio part", part(`{"type":"input_audio","input_audio":{}}`), ReasonImages},
		{"video part", part(`{"type":"video_url","video_url":{}}`), ReasonImages},
		{"part with uuid", part(`{"type":"text","text":"a","uuid":"b"}`), ReasonImages},
		{"part without type", part(`{"image_url":"x"}`), ReasonContent},
		{"tool reference", part(`{"type":"tool_reference","name":"x"}`), ReasonContent},
		{"embeddings part", part(`{"type":"prompt_embeds","data":"x"}`), ReasonEmbeds},
		{"null tools", `{"tools":null,` + hi + `}`, "ok"},
		{"empty tools", `{"tools":[],` + hi + `}`, "invalid"},
		{"nameless tool", `{"tools":[{"function":{}}],` + hi + `}`, "invalid"},
		{"tool of another type", `{"tools":[{"type":"retrieval","function":{"name":"a"}}],` + hi + `}`, "invalid"},
		{"parameters of another type", `{"tools":[{"function":{"name":"a","parameters":[]}}],` + hi + `}`, "invalid"},
		{"strict as text", `{"tools":[{"function":{"name":"a","strict":"yes"}}],` + hi + `}`, ReasonTools},
		{"tool call without function", call(`[{"id":"1"}]`), "invalid"},
		{"tool calls of another type", call(`"x"`), "invalid"},
		{"null tool calls", call(`null`), "ok"},
		{"template in the request", `{"chat_template":"x",` + hi + `}`, ReasonTemplate},
		{"template keywords", `{"chat_template_kwargs":{"x":1,"enable_thinking":false},` + hi + `}`, "ok"},
		{"template keywords of another type", `{"chat_template_kwargs":[],` + hi + `}`, "invalid"},
		{"renderer's parameter", `{"chat_template_kwargs":{"tokenize":true},` + hi + `}`, ReasonTemplateArgs},
		{"unknown effort", `{"reasoning_effort":"huge",` + hi + `}`, "invalid"},
		{"both flags by default", `{"continue_final_message":true,` + hi + `}`, "invalid"},
		{"flag by another name", `{"add_generation_prompt":"no","continue_final_message":1,` + hi + `}`, "ok"},
		{"flag of another type", `{"add_generation_prompt":null,` + hi + `}`, "invalid"},
		{"truncation", `{"truncate_prompt_tokens":3,` + hi + `}`, "ok"},
		{"truncation to the context length", `{"truncate_prompt_tokens":-1,` + hi + `}`, ReasonTruncate},
		{"truncation from a side", `{"truncate_prompt_tokens":3,"truncation_side":"right",` + hi + `}`, ReasonTruncate},
		{"truncation out of range", `{"truncate_prompt_tokens":-2,` + hi + `}`, "invalid"},
		{"ids of a prefill engine", `{"kv_transfer_params":{"prompt_token_ids":[1]},` + hi + `}`, ReasonReuse},
		{"deep nesting", `{"x":` + strings.Repeat("[", 100_000), ReasonSize},
		{"deep nesting of tools", `{"tools":` + strings.Repeat(`[{"a":`, 100_000), ReasonSize},
		{"too many values", `{"messages":[` + strings.Repeat("0,", maxValues) + `0]}`, ReasonSize},
	} {
		_, err := qwen3(t).Chat([]byte(tc.body))
		if got := outcome(err); got != tc.want {
			t.Errorf("%s: got %s (%v), want %s", tc.name, got, err, tc.want)
		}
		if _, err := NewSim().Chat([]byte(tc.body)); outcome(err) != tc.want {
			t.Errorf("%s: the simulator's outcome is %s, want %s", tc.name, outcome(err), tc.want)
		}
	}
}

func TestCompletionPrompts(t *testing.T) {
	t.Parallel()
	m := qwen3(t)
	for _, tc := range []struct {
		name, body, want string
		ids              []uint32
	}{
		{"text", `{"prompt":"Hello, how are you?"}`, "ok", []uint32{9707, 11, 1246, 525, 498, 30}},
		{"a list of one text", `{"prompt":["Hello, how are you?"]}`, "ok", []uint32{9707, 11, 1246, 525, 498, 30}},
		{"ids", `{"prompt":[1,2, 4294967295]}`, "ok", []uint32{1, 2, 4294967295}},
		{"a list of one list of ids", `{"prompt":[[1,2]]}`, "ok", []uint32{1, 2}},
		{"added tokens in text", `{"prompt":"a<|im_end|>"}`, "ok", []uint32{64, 151645}},
		{"the last of equal keys", `{"prompt":[1],"prompt":[2]}`, "ok", []uint32{2}},
		{"truncation keeps the end", `{"prompt":[1,2,3],"truncate_prompt_tokens":2}`, "ok", []uint32{2, 3}},
		{"two texts", `{"prompt":["a","b"]}`, ReasonBatch, nil},
		{"two lists", `{"prompt":[[1],[2]]}`, ReasonBatch, nil},
		{"a list and a text", `{"prompt":[[1],"b"]}`, ReasonBatch, nil},
		{"an id and a text", `{"prompt":[1,"b"]}`, "invalid", nil},
		{"a text and an id", `{"prompt":["b",1]}`, "invalid", nil},
		{"no prompt", `{}`, "invalid", nil},
		{"null", `{"prompt":null}`, "invalid", nil},
		{"empty text", `{"prompt":""}`, "invalid", nil},
		{"empty list", `{"prompt":[]}`, "invalid", nil},
		{"empty list of ids", `{"prompt":[[]]}`, "invalid", nil},
		{"negative id", `{"prompt":[-1]}`, "invalid", nil},
		{"large id", `{"prompt":[4294967296]}`, "invalid", nil},
		{"an object", `{"prompt":{"a":1}}`, "invalid", nil},
		{"broken list", `{"prompt":["a" "b"]}`, "invalid", nil},
		{"broken after two texts", `{"prompt":["a","b",}`, "invalid", nil},
		{"broken off", `{"prompt":[`, "invalid", nil},
		{"lone surrogate", `{"prompt":"\ud800"}`, "invalid", nil},
		{"embeddings", `{"prompt_embeds":"x"}`, ReasonEmbeds, nil},
		{"ids of a prefill engine", `{"prompt":"a","kv_transfer_params":{"prompt_token_ids":[1]}}`, ReasonReuse, nil},
	} {
		p, err := m.Completion([]byte(tc.body))
		if got := outcome(err); got != tc.want || !slices.Equal(p.Tokens, tc.ids) {
			t.Errorf("%s: got %d, %s (%v), want %d, %s", tc.name, p.Tokens, got, err, tc.ids, tc.want)
		}
	}
}

// Requests beside the golden file; what is wanted follows vLLM 0.32.0's source.
func TestQwen3Rendering(t *testing.T) {
	t.Parallel()
	const user = `{"role":"user","content":"hi"}`
	const rendered = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
	for _, tc := range []struct{ name, body, want string }{
		{"no effort, no thinking", `{"reasoning_effort":"none","messages":[` + user + `]}`, rendered + "<think>\n\n</think>\n\n"},
		{"keywords win over the effort", `{"reasoning_effort":"none","chat_template_kwargs":{"enable_thinking":true},"messages":[` + user + `]}`, rendered},
		{"false is not like false", `{"chat_template_kwargs":{"enable_thinking":0},"messages":[` + user + `]}`, rendered},
		{"billing line", `{"messages":[{"role":"system","content":"x-anthropic-billing-header: cch=1\nBe nice."},` + user + `]}`,
			"<|im_start|>system\nBe nice.<|im_end|>\n" + rendered},
		{"billing line alone", `{"messages":[{"role":"system","content":[{"type":"text","text":"x-anthropic-billing-header: cch=1"},"a"]},` + user + `]}`,
			"<|im_start|>system\na<|im_end|>\n" + rendered},
		{"empty parts are left out", `{"messages":[{"role":"user","content":["","hi",""]}]}`, rendered},
		{"a developer gathers the system's messages", `{"messages":[` + user + `,{"role":"system","content":"a"},{"role":"developer","content":"b"}]}`,
			"<|im_start|>system\na\n\nb<|im_end|>\n" + rendered},
		{"fields of tools", `{"tools":[{"defer_loading":true,"x":1,"function":{"strict":false,"name":"f","x":2}}],"messages":[` + user + `],"add_generation_prompt":false}`,
			"<|im_start|>system\n" + qwen3ToolsBefore + "\n" +
				`{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "strict": false, "defer_loading": true}, "defer_loading": true}` +
				qwen3ToolsAfter + "<|im_start|>user\nhi<|im_end|>\n"},
		{"a continued tag", `{"add_generation_prompt":false,"continue_final_message":true,"messages":[{"role":"user","content":"a CONTINUE_FINAL_MESSAGE_TAG b"}]}`,
			"<|im_start|>user\na CONTINUE_FINAL_MESSAGE_TAG b"},
	} {
		got, err := qwen3(t).Render(nil, []byte(tc.body))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: got %q (%v), want %q", tc.name, got, err, tc.want)
		}
	}
}

func TestPythonJSON(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ in, want string }{
		{`{"a":1,"b":2,"a":3}`, `{"a": 3, "b": 2}`},
		{`[]`, `[]`}, {`{}`, `{}`}, {` [ 1 , [ ] ] `, `[1, []]`},
		{`[null,true,false]`, `[null, true, false]`},
		{`-0`, `0`}, {`-0.0`, `-0.0`}, {`1.0`, `1.0`}, {`1e2`, `100.0`}, {`1E400`, `Infinity`}, {`-1e400`, `-Infinity`},
		{`1e16`, `1e+16`}, {`123456789012345680.0`, `1.2345678901234568e+17`}, {`1e15`, `1000000000000000.0`},
		{`0.0001`, `0.0001`}, {`0.00001`, `1e-05`}, {`5e-324`, `5e-324`}, {`1e-400`, `0.0`},
		{`123456789012345678901234567890`, `123456789012345678901234567890`},
		{`NaN`, `NaN`}, {`Infinity`, `Infinity`}, {`-Infinity`, `-Infinity`},
		{`"\u00e9\u0000\u001f\u007f\u2028\/\"\\\b\f\n\r\t\ud83d\ude00<>&'"`, "\"é\\u0000\\u001f\x7f\u2028/\\\"\\\\\\b\\f\\n\\r\\t😀<>&'\""},
	} {
		v, err := (&decoder{s: tc.in}).document()
		if got := string(appendPython(nil, v)); err != nil || got != tc.want {
			t.Errorf("%s: got %s (%v), want %s", tc.in, got, err, tc.want)
		}
	}
}

// A body's members keep Python's order whatever the size of the object.
func TestLargeObjectsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	var in, want strings.Builder
	for i := range 1000 {
		key := strings.Repeat("k", i%500+1)
		in.WriteString(`,"` + key + `":` + string(rune('0'+i/500)))
		if i < 500 {
			want.WriteString(`, "` + key + `": 1`)
		}
	}
	v, err := (&decoder{s: "{" + in.String()[1:] + "}"}).document()
	if got := string(appendPython(nil, v)); err != nil || got != "{"+want.String()[2:]+"}" {
		t.Errorf("got %s (%v)", got, err)
	}
}
