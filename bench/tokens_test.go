package main

import (
	"testing"

	"github.com/inferrail/inferrail/tokenize"
)

// TestChatsHaveTheSizesTheyClaim tokenizes the chats as the router and the engines do.
func TestChatsHaveTheSizesTheyClaim(t *testing.T) {
	t.Parallel()
	model, err := tokenize.LoadHuggingFace("../tokenize/testdata/qwen3")
	if err != nil {
		t.Fatal(err)
	}
	systems, err := readSystems()
	if err != nil {
		t.Fatal(err)
	}
	count := func(body []byte, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		prompt, err := model.Chat(body)
		if err != nil {
			t.Fatal(err)
		}
		return len(prompt.Tokens)
	}
	shared := 0
	for name, text := range systems {
		n := count(chatBody("m", text, []string{""}, nil, 1))
		if n < 200 || n > 1500 {
			t.Errorf("system prompt %s has %d tokens", name, n)
		}
		shared += n
	}
	plan := defaultChatPlan("m")
	w, err := chatWorkload(plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Every chat's own tokens, the answers not counted; the twelve chats of each system prompt share it.
	own := -len(w.Sessions) / len(systems) * shared
	for _, s := range w.Sessions {
		last := len(s.Turns) - 1
		n := count(s.Turns[last].Body(make([]string, last)))
		own += n
		if longest := n + (last+1)*plan.AnswerMax; longest > w.Engine.MaxModelLen {
			t.Errorf("chat %s may have %d tokens, more than the engines' context of %d", s.ID, longest, w.Engine.MaxModelLen)
		}
	}
	need := shared + own + w.Requests*plan.AnswerMin
	t.Logf("all chats together need more than %d tokens, %d of them shared", need, shared)
	if pool := w.Engine.Blocks * blockSize; need <= pool {
		t.Errorf("an engine's %d tokens hold all chats: none is ever evicted", pool)
	}
}
