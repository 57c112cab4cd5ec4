package main

import (
	"bufio"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"time"
)

//go:embed testdata/chats.jsonl testdata/systems testdata/mooncake-200.jsonl.gz
var testdata embed.FS

// A chat is one line of chats.jsonl.
type chat struct {
	ID     string   `json:"id"`
	System string   `json:"system"` // name of a file in systems, without its extension
	Turns  []string `json:"turns"`  // what the user says
}

// chatPlan is how chats become a schedule.
type chatPlan struct {
	Model              string
	Span               time.Duration // over which the chats begin, as a Poisson process
	ThinkMin, ThinkMax time.Duration // between an answer's end and the next turn, uniformly distributed
	AnswerMin          int           // tokens of an answer, uniformly distributed; the engines generate exactly
	AnswerMax          int           // as many as a turn was given
	Seed               uint64
}

// defaultChatPlan keeps three simulated engines moderately busy for about a minute: 221 turns over 60 s, each with a
// prefill of up to 0.2 s on a cold cache.
func defaultChatPlan(model string) chatPlan {
	return chatPlan{
		Model: model, Span: 40 * time.Second,
		ThinkMin: time.Second, ThinkMax: 3 * time.Second,
		AnswerMin: 48, AnswerMax: 160, Seed: 1,
	}
}

// readChats parses chats.jsonl and checks that each names a system prompt that exists and has at least one turn.
func readChats(data []byte, systems map[string]string) ([]chat, error) {
	var chats []chat
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, 1<<20)
	for line := 1; sc.Scan(); line++ {
		var c chat
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			return nil, fmt.Errorf("parsing chat in line %d: %w", line, err)
		}
		if _, ok := systems[c.System]; !ok {
			return nil, fmt.Errorf("parsing chat %q: unknown system prompt %q", c.ID, c.System)
		}
		if len(c.Turns) == 0 {
			return nil, fmt.Errorf("parsing chat %q: it has no turns", c.ID)
		}
		chats = append(chats, c)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("reading chats: %w", err)
	}
	return chats, nil
}

// readSystems returns the shared system prompts by name.
func readSystems() (map[string]string, error) {
	const dir = "testdata/systems"
	entries, err := testdata.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("reading system prompts: %w", err)
	}
	systems := make(map[string]string, len(entries))
	for _, e := range entries {
		text, err := testdata.ReadFile(path.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("reading system prompt: %w", err)
		}
		systems[strings.TrimSuffix(e.Name(), ".txt")] = strings.TrimSpace(string(text))
	}
	return systems, nil
}

// chatWorkload schedules at most limit chats (all for 0) by the plan.
func chatWorkload(plan chatPlan, limit int) (*workload, error) {
	systems, err := readSystems()
	if err != nil {
		return nil, err
	}
	data, err := testdata.ReadFile("testdata/chats.jsonl")
	if err != nil {
		return nil, fmt.Errorf("reading chats: %w", err)
	}
	chats, err := readChats(data, systems)
	if err != nil {
		return nil, err
	}
	starts := poissonStarts(len(chats), plan.Span, plan.Seed)
	if limit > 0 && limit < len(chats) {
		chats = chats[:limit]
	}
	rng := rand.New(rand.NewPCG(plan.Seed, 1))
	w := &workload{Name: "chats", Engine: chatEngine()}
	for i, c := range chats {
		w.Sessions = append(w.Sessions, plan.session(c, systems[c.System], starts[i], rng))
	}
	w.Requests = countTurns(w.Sessions)
	w.About = fmt.Sprintf("%d multi-turn chats of %d turns, tokenized with Qwen3's template and vocabulary, beginning over %s; "+
		"open loop across chats, %s to %s of think time within one",
		len(chats), w.Requests, plan.Span, plan.ThinkMin, plan.ThinkMax)
	return w, nil
}

// session schedules one chat. It draws two numbers per turn from rng.
func (p chatPlan) session(c chat, system string, start time.Duration, rng *rand.Rand) session {
	s := session{ID: c.ID, Start: start}
	for i := range c.Turns {
		think := p.ThinkMin + time.Duration(rng.Int64N(int64(p.ThinkMax-p.ThinkMin)+1))
		tokens := p.AnswerMin + rng.IntN(p.AnswerMax-p.AnswerMin+1)
		users := c.Turns[:i+1]
		s.Turns = append(s.Turns, turn{
			Think: think,
			Path:  "/v1/chat/completions",
			Body: func(answers []string) ([]byte, error) {
				return chatBody(p.Model, system, users, answers, tokens)
			},
		})
	}
	return s
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// generation holds the request fields that chats and completions share.
type generation struct {
	Model         string        `json:"model"`
	MaxTokens     int           `json:"max_tokens"`
	Temperature   float64       `json:"temperature"`
	IgnoreEOS     bool          `json:"ignore_eos"`
	Stream        bool          `json:"stream"`
	StreamOptions streamOptions `json:"stream_options"`
}

// newGeneration asks for exactly maxTokens tokens as a stream that ends with the usage.
func newGeneration(model string, maxTokens int) generation {
	return generation{
		Model: model, MaxTokens: maxTokens, IgnoreEOS: true,
		Stream: true, StreamOptions: streamOptions{IncludeUsage: true},
	}
}

// chatBody is the body of the turn that follows on len(answers) earlier ones.
func chatBody(model, system string, users, answers []string, maxTokens int) ([]byte, error) {
	if len(answers) != len(users)-1 {
		return nil, fmt.Errorf("building turn %d of a chat: %d answers", len(users), len(answers))
	}
	messages := []message{{"system", system}}
	for i, u := range users {
		messages = append(messages, message{"user", u})
		if i < len(answers) {
			messages = append(messages, message{"assistant", answers[i]})
		}
	}
	return json.Marshal(struct {
		generation
		Messages []message `json:"messages"`
	}{newGeneration(model, maxTokens), messages})
}
