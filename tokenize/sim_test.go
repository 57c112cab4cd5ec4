package tokenize

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func simIDs(t rapid.TB, text string) []uint32 {
	ids, err := NewSim().Tokenizer().Append(nil, text)
	if err != nil {
		t.Fatalf("Append(%q): %v", text, err)
	}
	return ids
}

func TestSimDecodesWhatItEncoded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		if got := string(NewSim().Tokenizer().Decode(nil, simIDs(t, text))); got != text {
			t.Fatalf("%q decodes to %q", text, got)
		}
	})
}

func TestSimPrefixesShareTokens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		prefix, whole := simIDs(t, a), simIDs(t, a+b)
		if n := max(len(prefix)-1, 0); !slices.Equal(prefix[:n], whole[:min(n, len(whole))]) {
			t.Fatalf("%q gives %x, but %q gives %x", a, prefix, a+b, whole)
		}
	})
}

func TestSimDecodesAnyIDs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOf(rapid.Uint32()).Draw(t, "ids")
		text := NewSim().Tokenizer().Decode(nil, ids)
		if !utf8.Valid(text) {
			t.Fatalf("%x decodes to invalid UTF-8 %q", ids, text)
		}
	})
}

func TestSimTextIsNeverSpecial(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"<|start|>", "a<|message|>b", "<|end|>", "\xff\x00", "\xc0"} {
		for _, id := range simIDs(t, text) {
			if id>>simKindShift == simSpecial {
				t.Errorf("%q gives the special token %#x", text, id)
			}
		}
	}
}

// What the simulator generated comes back as a message of the next turn with
// the same ids in the same place.
func TestSimSecondTurnContinuesTheFirst(t *testing.T) {
	t.Parallel()
	m := NewSim()
	rapid.Check(t, func(t *rapid.T) {
		turns := rapid.SliceOfN(rapid.String(), 1, 4).Draw(t, "messages")
		seed, n := rapid.Uint64().Draw(t, "seed"), rapid.IntRange(0, 40).Draw(t, "n")
		var messages []map[string]any
		for i, text := range turns {
			messages = append(messages, map[string]any{"role": []string{"user", "assistant"}[i%2], "content": text})
		}
		first := chatIDs(t, m, messages)
		for i := range n {
			first = append(first, SimText(seed, i))
		}
		answer := m.Tokenizer().Decode(nil, first[len(first)-n:])
		second := chatIDs(t, m, append(messages, map[string]any{"role": "assistant", "content": string(answer)},
			map[string]any{"role": "user", "content": "go on"}))
		if len(second) <= len(first) || !slices.Equal(first, second[:len(first)]) || second[len(first)] != SimEnd {
			t.Fatalf("first turn %x\nsecond turn %x", first, second)
		}
	})
}

func chatIDs(t rapid.TB, m *Model, messages []map[string]any) []uint32 {
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		t.Fatalf("encoding messages: %v", err)
	}
	p, err := m.Chat(body)
	if err != nil {
		t.Fatalf("Chat(%s): %v", body, err)
	}
	return p.Tokens
}

func TestSimWords(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, w := range strings.Fields(simWords) {
		if len(w) != 3 || seen[w] {
			t.Errorf("word %q is not of three letters, or twice in the list", w)
		}
		seen[w] = true
	}
	if len(seen) < 256 || len(seen)*simRun != len(simWords) {
		t.Errorf("%d words in %d bytes", len(seen), len(simWords))
	}
	used := map[uint32]bool{}
	for i := range 10_000 {
		id := SimText(7, i)
		used[id] = true
		text := string(NewSim().Tokenizer().Decode(nil, []uint32{id}))
		if !seen[strings.TrimSuffix(text, " ")] || len(text) != 4 {
			t.Fatalf("token %d is %q", i, text)
		}
	}
	if len(used) != len(seen) {
		t.Errorf("%d of %d words in 10,000 tokens", len(used), len(seen))
	}
}

func TestSimChat(t *testing.T) {
	t.Parallel()
	m := NewSim()
	for _, tc := range []struct{ name, body, want string }{
		{"a message", `{"messages":[{"role":"user","content":"hi"}]}`,
			"<|start|>user<|message|>hi<|end|><|start|>assistant<|message|>"},
		{"tools lead", `{"messages":[{"role":"user","content":"hi"}],"tools":[{"function":{"name":"f"} }]}`,
			`<|start|>tools<|message|>[{"function":{"name":"f"} }]<|end|><|start|>user<|message|>hi<|end|><|start|>assistant<|message|>`},
		{"tool calls follow", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f"}}]},{"role":"tool","content":"x"}],"add_generation_prompt":false}`,
			`<|start|>assistant<|message|><|end|><|start|>tool_calls<|message|>[{"function":{"name":"f"}}]<|end|><|start|>tool<|message|>x<|end|>`},
		{"text parts are joined", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}`,
			"<|start|>user<|message|>a\nb<|end|><|start|>assistant<|message|>"},
		{"the final message stays open", `{"messages":[{"role":"assistant","content":"a"}],"add_generation_prompt":false,"continue_final_message":true}`,
			"<|start|>assistant<|message|>a"},
	} {
		got, err := m.Render(nil, []byte(tc.body))
		if err != nil || string(got) != tc.want {
			t.Errorf("%s: got %q (%v), want %q", tc.name, got, err, tc.want)
		}
		p, err := m.Chat([]byte(tc.body))
		if text := m.Tokenizer().Decode(nil, p.Tokens); err != nil || string(text) != tc.want {
			t.Errorf("%s: ids of %q (%v), want %q", tc.name, text, err, tc.want)
		}
	}
	_, err := m.Chat([]byte(`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`))
	var u *UnsupportedError
	if !errors.As(err, &u) || u.Reason != ReasonImages {
		t.Errorf("an image gives %v, want reason %q", err, ReasonImages)
	}
}

// Recorded event streams hold the simulator's ids: they change only together
// with simFingerprint.
func TestSimIDsAreFixed(t *testing.T) {
	t.Parallel()
	got := fmt.Sprintf("%x %s", simIDs(t, "sun moon é\xff!"), NewSim().Fingerprint())
	if want := "[341bbaf3 3ddbf7ed 20 400000e9 800000ff 21] inferrail-sim-1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := SimText(1, 0), simIDs(t, "dad ")[0]; got != want {
		t.Errorf("the first token of seed 1 is %q, want %q", NewSim().Tokenizer().Decode(nil, []uint32{got}), "dad ")
	}
}
