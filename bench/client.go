package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A sample is what one request's client saw. Times are durations since the start of the run.
type sample struct {
	Session string `json:"session"`
	Turn    int    `json:"turn"`

	Scheduled  time.Duration `json:"scheduled_ns"`
	Sent       time.Duration `json:"sent_ns"`        // the request was written to the connection
	FirstToken time.Duration `json:"first_token_ns"` // the first chunk with content was read; 0 if there was none
	End        time.Duration `json:"end_ns"`

	Status  int    `json:"status"` // 0 if no response came
	Error   string `json:"error,omitempty"`
	Replica string `json:"replica"` // the router's x-inferrail-replica
	Policy  string `json:"policy"`  // the router's x-inferrail-policy

	PromptTokens int  `json:"prompt_tokens"` // the engine's usage
	CachedTokens int  `json:"cached_tokens"` // the engine's usage
	OutputTokens int  `json:"output_tokens"` // the engine's usage
	Predicted    *int `json:"predicted_cached_tokens"`
	Counted      *int `json:"counted_prompt_tokens"` // what the router counted the prompt to have
}

// client sends requests to one router.
type client struct {
	base    string // http://HOST:PORT
	http    *http.Client
	timeout time.Duration // for one request from its schedule to the answer's last byte
}

// newClient has no limit on connections, so that none of the requests waits on this side; close releases them.
func newClient(base string, timeout time.Duration) *client {
	return &client{
		base:    base,
		timeout: timeout,
		http: &http.Client{Transport: &http.Transport{
			MaxIdleConnsPerHost: 1024,
			DisableCompression:  true,
		}},
	}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// send does one request and fills in s; it returns the answer's text. since gives the time since the start of the run.
// A fault of any kind is in s.Error, and the text is then what came before it.
func (c *client) send(ctx context.Context, path, sessionID string, body []byte, since func() time.Duration, s *sample) string {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var text strings.Builder
	err := c.exchange(ctx, path, sessionID, body, since, s, &text)
	s.End = since()
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no complete answer in %s: %w", c.timeout, err)
		}
		s.Error = err.Error()
	}
	return text.String()
}

func (c *client) exchange(ctx context.Context, path, sessionID string, body []byte, since func() time.Duration, s *sample, text *strings.Builder) error {
	// The transport may report a write from another goroutine, and once more for a retried connection.
	var sent atomic.Int64
	sent.Store(int64(since()))
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		WroteRequest: func(httptrace.WroteRequestInfo) { sent.Store(int64(since())) },
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Session-Id", sessionID)
	resp, err := c.http.Do(req)
	s.Sent = time.Duration(sent.Load())
	if err != nil {
		return fmt.Errorf("sending request: %w", err)
	}
	defer resp.Body.Close()
	s.Status = resp.StatusCode
	s.Replica = resp.Header.Get("X-Inferrail-Replica")
	s.Policy = resp.Header.Get("X-Inferrail-Policy")
	s.Predicted = headerInt(resp.Header, "X-Inferrail-Cached-Tokens")
	s.Counted = headerInt(resp.Header, "X-Inferrail-Prompt-Tokens")
	if resp.StatusCode != http.StatusOK {
		detail, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("status %d: %s", resp.StatusCode, bytes.TrimSpace(detail))
	}
	return readStream(resp.Body, since, s, text)
}

// headerInt is nil if the header is missing or no number.
func headerInt(h http.Header, name string) *int {
	n, err := strconv.Atoi(h.Get(name))
	if err != nil {
		return nil
	}
	return &n
}

// A chunk is what is read of a streamed chunk, of a chat or of a completion.
type chunk struct {
	Choices []struct {
		Text  string `json:"text"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason *string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
		Details          *struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error json.RawMessage `json:"error"`
}

// readStream reads an answer to its end. A stream without a finish reason, usage or [DONE] is a fault, and so is an
// error event.
func readStream(r io.Reader, since func() time.Duration, s *sample, text *strings.Builder) error {
	events := newEventReader(r)
	finished, counted := false, false
	for {
		data, err := events.next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("reading stream: it ended without [DONE]: %w", io.ErrUnexpectedEOF)
		}
		if err != nil {
			return fmt.Errorf("reading stream: %w", err)
		}
		if string(data) == "[DONE]" {
			break
		}
		var c chunk
		if err := json.Unmarshal(data, &c); err != nil {
			return fmt.Errorf("reading stream: parsing chunk: %w", err)
		}
		if len(c.Error) > 0 && string(c.Error) != "null" {
			return fmt.Errorf("reading stream: the engine reports %.500s", c.Error)
		}
		for _, choice := range c.Choices {
			piece := choice.Text + choice.Delta.Content
			finished = finished || choice.FinishReason != nil
			if s.FirstToken == 0 && (piece != "" || finished) {
				s.FirstToken = since()
			}
			text.WriteString(piece)
		}
		if c.Usage != nil {
			counted = true
			s.PromptTokens, s.OutputTokens = c.Usage.PromptTokens, c.Usage.CompletionTokens
			// vLLM leaves the details out when nothing was cached.
			if c.Usage.Details != nil {
				s.CachedTokens = c.Usage.Details.CachedTokens
			}
		}
	}
	switch {
	case !finished:
		return errors.New("reading stream: no finish reason before [DONE]")
	case !counted:
		return errors.New("reading stream: no usage before [DONE]")
	}
	return nil
}
