package simulator

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/inferrail/inferrail/index"
	"github.com/inferrail/inferrail/internal/openai"
	"github.com/inferrail/inferrail/simulator/engine"
)

// maxBody bounds a request body, in bytes; vLLM has no such bound.
const maxBody = 64 << 20

// maxSequences bounds the sequences of one request, its prompts times n: each costs up to max_model_len tokens of
// planning and of buffer.
const maxSequences = 512

func (s *Simulator) serveChat(w http.ResponseWriter, r *http.Request) error {
	return s.generate(w, r, true)
}

func (s *Simulator) serveCompletion(w http.ResponseWriter, r *http.Request) error {
	return s.generate(w, r, false)
}

// answer is one request that the engine computes.
type answer struct {
	sim     *Simulator
	params  *params
	head    openai.Head
	prompts [][]uint32
	call    *call
	texts   []textStream // one for each sequence
	counts  []int        // generated tokens of each sequence
	usage   openai.Usage
}

func (s *Simulator) generate(w http.ResponseWriter, r *http.Request, chat bool) error {
	a, err := s.prepare(w, r, chat)
	if err != nil {
		writeFault(w, err)
		return nil
	}
	eng, err := s.acquire()
	if err == nil {
		defer s.release()
		err = eng.driver.submit(a.call.sequences)
	}
	if err != nil {
		writeFault(w, internalError(err))
		return nil
	}
	defer eng.driver.abort(a.call.sequences)
	if a.params.stream {
		a.stream(w, r)
	} else {
		a.whole(w, r)
	}
	return nil
}

func internalError(err error) error {
	return &apiError{http.StatusInternalServerError, "InternalServerError", err.Error(), ""}
}

// prepare checks a request and plans its sequences.
func (s *Simulator) prepare(w http.ResponseWriter, r *http.Request, chat bool) (*answer, error) {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return nil, &apiError{http.StatusBadRequest, "Bad Request",
			"1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed", ""}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	p, err := parseRequest(body, chat)
	if err != nil {
		return nil, err
	}
	if p.model != "" && !slices.Contains(s.ServedModelName, p.model) {
		return nil, &apiError{http.StatusNotFound, "NotFoundError", "The model `" + p.model +
			"` does not exist. Valid aliases: " + strings.Join(s.ServedModelName, ", ") + ".", "model"}
	}
	a := &answer{sim: s, params: p, call: newCall()}
	if a.prompts, err = s.promptTokens(p); err != nil {
		return nil, err
	}
	a.head = openai.Head{ID: requestID(r, p), Created: time.Now().Unix(), Model: s.servedName()}
	if p.model != "" {
		a.head.Model = p.model
	}
	return a, a.addSequences()
}

// requestID is the id of the answer: the header X-Request-Id, the body's request_id or a random one.
func requestID(r *http.Request, p *params) string {
	prefix := "cmpl-"
	if p.chat {
		prefix = "chatcmpl-"
	}
	if h, ok := r.Header["X-Request-Id"]; ok && len(h) > 0 {
		return prefix + h[0]
	}
	if p.requestID != "" {
		return prefix + p.requestID
	}
	return prefix + randomID()
}

func (a *answer) addSequences() error {
	p, s := a.params, a.sim
	limits := make([]integer, len(a.prompts))
	for i, prompt := range a.prompts {
		limit, err := p.outputLimit(len(prompt), s.MaxModelLen)
		if err == nil {
			err = p.check(limit)
		}
		if err != nil {
			return err
		}
		limits[i] = limit
	}
	if p.n.n > maxSequences || int(p.n.n)*len(a.prompts) > maxSequences {
		return badRequest(fmt.Sprintf("The simulator generates at most %d sequences for a request.", maxSequences))
	}
	root := index.Root(s.Model, "", p.cacheSalt, s.BlockSize)
	a.usage.Details = s.EnablePromptTokensDetails
	for i, prompt := range a.prompts {
		a.usage.PromptTokens += len(prompt)
		g := &group{n: int(p.n.n), left: int(p.n.n)}
		limit := max(int(limits[i].n), 1)
		for child := range g.n {
			plan := s.generator.plan(p, prompt, child, limit)
			seq := &sequence{call: a.call, index: len(a.call.sequences), plan: plan, group: g}
			seq.request = engine.Request{
				Prompt: slices.Clip(prompt), Root: root, MaxTokens: limit, StopAfter: plan.stopAfter,
				Priority: p.priority, Next: func(i int) uint32 { return s.generator.token(plan.seed, i) },
			}
			a.call.sequences = append(a.call.sequences, seq)
		}
	}
	a.texts = make([]textStream, len(a.call.sequences))
	a.counts = make([]int, len(a.call.sequences))
	for i, seq := range a.call.sequences {
		a.texts[i] = textStream{plan: &seq.plan, decoder: s.generator.tokenizer}
	}
	return nil
}

// prompt is the prompt of the i-th sequence.
func (a *answer) prompt(i int) []uint32 { return a.prompts[i/int(a.params.n.n)] }

// echoed is the text that echo puts in front.
func (a *answer) echoed(i int) string {
	if !a.params.echo {
		return ""
	}
	return string(a.sim.generator.tokenizer.Decode(nil, a.prompt(i)))
}

// stopReason says why a sequence ended; null when it reached its maximum first.
func stopReason(d *delta) openai.StopReason {
	if d.finish != engine.FinishStop {
		return openai.StopReason{}
	}
	return d.seq.plan.stop
}

// take counts a delta and gives its text.
func (a *answer) take(d *delta) string {
	i := d.seq.index
	a.counts[i] += len(d.tokens)
	a.usage.CompletionTokens += len(d.tokens)
	if i == len(a.texts)-1 {
		a.usage.CachedTokens, a.usage.CreatedCacheTokens = d.cached, d.created // vLLM reports the last sequence's
	}
	if a.params.promptOnly() {
		return ""
	}
	return a.texts[i].add(d.tokens, d.finish != "")
}

// whole answers with one body when all sequences have ended.
func (a *answer) whole(w http.ResponseWriter, r *http.Request) {
	choices := make([]openai.Choice, len(a.texts))
	texts := make([]strings.Builder, len(a.texts))
	for i := range choices {
		choices[i].Index = i
		texts[i].WriteString(a.echoed(i))
		if a.params.returnTokenIDs {
			choices[i].PromptTokenIDs = a.prompt(i)
			choices[i].TokenIDs = []uint32{}
			if a.params.echo {
				choices[i].TokenIDs = append(choices[i].TokenIDs, a.prompt(i)...)
			}
		}
	}
	err := a.each(r.Context(), func(d *delta) error {
		c := &choices[d.seq.index]
		texts[d.seq.index].WriteString(a.take(d))
		if a.params.returnTokenIDs && !a.params.promptOnly() {
			c.TokenIDs = append(c.TokenIDs, d.tokens...)
		}
		if d.finish != "" {
			c.FinishReason, c.StopReason = string(d.finish), stopReason(d)
		}
		return nil
	})
	if err != nil {
		return // the client has left
	}
	for i := range choices {
		choices[i].Text = texts[i].String()
	}
	var body []byte
	if a.params.chat {
		body = openai.AppendChat(nil, a.head, choices, a.usage, a.sim.print, choices[0].PromptTokenIDs)
	} else {
		body = openai.AppendCompletion(nil, a.head, choices, a.usage, a.sim.print)
	}
	writeJSON(w, http.StatusOK, body)
}

// each calls f with what the sequences bring until all have ended, the client has left or f fails.
func (a *answer) each(ctx context.Context, f func(*delta) error) error {
	var deltas []delta
	for open := len(a.call.sequences); open > 0; {
		var err error
		if deltas, err = a.call.next(ctx, deltas[:0]); err != nil {
			return err
		}
		for i := range deltas {
			if err := f(&deltas[i]); err != nil {
				return err
			}
			if deltas[i].finish != "" {
				open--
			}
		}
	}
	return nil
}

// streamer writes an answer as server-sent events.
type streamer struct {
	*answer
	w       http.ResponseWriter
	flusher *http.ResponseController
	buf     []byte
	begun   bool   // the chat's first chunks are out
	first   []bool // of each sequence: no chunk yet
	open    int
}

func (a *answer) stream(w http.ResponseWriter, r *http.Request) {
	st := &streamer{answer: a, w: w, flusher: http.NewResponseController(w), open: len(a.texts)}
	st.first = make([]bool, len(a.texts))
	for i := range st.first {
		st.first[i] = true
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	if st.flush() != nil {
		return
	}
	if a.each(r.Context(), st.send) != nil {
		return // the client has left
	}
	st.buf = st.buf[:0]
	if a.params.includeUsage {
		st.buf = openai.AppendUsageChunk(st.buf, a.head, a.params.chat, &a.usage, a.sim.print)
	}
	st.buf = openai.AppendDone(st.buf)
	_ = st.flush() // the client may be gone
}

// flush writes the buffer out; a failure means that the client has left.
func (st *streamer) flush() error {
	if len(st.buf) > 0 {
		if _, err := st.w.Write(st.buf); err != nil {
			return err
		}
	}
	return st.flusher.Flush()
}

func (st *streamer) send(d *delta) error {
	st.buf = st.buf[:0]
	if st.params.chat && !st.begun {
		st.begun = true
		st.appendRoles()
	}
	i := d.seq.index
	c := openai.Chunk{Index: i, Text: st.take(d), FinishReason: string(d.finish), StopReason: stopReason(d)}
	if st.params.returnTokenIDs {
		c.TokenIDs = d.tokens
	}
	if st.first[i] && !st.params.chat {
		st.appendPrompt(&c)
	}
	st.first[i] = false
	if d.finish != "" {
		st.open--
		if st.open == 0 && !st.params.includeUsage {
			c.Fingerprint = st.sim.print
		}
	}
	if st.params.continuousUsage {
		c.Usage = &openai.Usage{PromptTokens: len(st.prompt(i)), CompletionTokens: st.counts[i]}
	}
	if st.params.chat {
		st.buf = openai.AppendChatChunk(st.buf, st.head, &c)
	} else {
		st.buf = openai.AppendCompletionChunk(st.buf, st.head, &c)
	}
	return st.flush()
}

// appendRoles appends the chunk that opens each choice of a chat.
func (st *streamer) appendRoles() {
	for i := range st.texts {
		c := openai.Chunk{Index: i, Role: "assistant"}
		if st.params.returnTokenIDs {
			c.PromptTokenIDs = st.prompt(i)
		}
		if st.params.continuousUsage {
			c.Usage = &openai.Usage{PromptTokens: len(st.prompt(i))}
		}
		st.buf = openai.AppendChatChunk(st.buf, st.head, &c)
	}
}

// appendPrompt puts the prompt into a completion's first chunk where the request asks for it.
func (st *streamer) appendPrompt(c *openai.Chunk) {
	if st.params.echo {
		c.Text = st.echoed(c.Index) + c.Text
		if c.TokenIDs != nil {
			c.TokenIDs = slices.Concat(st.prompt(c.Index), c.TokenIDs)
		}
	}
	if st.params.echo || st.params.returnTokenIDs {
		c.PromptTokenIDs = st.prompt(c.Index)
	}
}
