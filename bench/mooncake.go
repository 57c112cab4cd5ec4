package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
)

const (
	// traceBlock is the size of a block that a hash id of the Mooncake trace stands for, in tokens.
	traceBlock = 512
	// traceScale divides all lengths, so that the trace's prompts of up to 126,000 tokens fit simulated engines with a
	// small cache and a replay takes a minute.
	traceScale = 8
	// scaledBlock is a trace block's length once scaled: a whole number of engine blocks of 16.
	scaledBlock = traceBlock / traceScale
	// traceVocab bounds the token ids: all of them are ordinary tokens of Qwen3's vocabulary, whose special tokens
	// begin at 151,643.
	traceVocab = 150_000
)

// A traceRow is one request of the Mooncake trace, as its files hold it.
type traceRow struct {
	Timestamp    int64    `json:"timestamp"`     // milliseconds since the trace's start
	InputLength  int      `json:"input_length"`  // tokens
	OutputLength int      `json:"output_length"` // tokens
	HashIDs      []uint64 `json:"hash_ids"`      // one per block of 512 tokens, the last one possibly partial
}

// readTrace parses a gzipped trace of one JSON object a line.
func readTrace(gz []byte) ([]traceRow, error) {
	zr, err := gzip.NewReader(bytes.NewReader(gz))
	if err != nil {
		return nil, fmt.Errorf("unpacking trace: %w", err)
	}
	sc := bufio.NewScanner(io.LimitReader(zr, 256<<20))
	sc.Buffer(nil, 4<<20)
	var rows []traceRow
	for line := 1; sc.Scan(); line++ {
		var r traceRow
		if err := json.Unmarshal(sc.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("parsing trace line %d: %w", line, err)
		}
		if want := (r.InputLength + traceBlock - 1) / traceBlock; r.InputLength < 1 || len(r.HashIDs) != want {
			return nil, fmt.Errorf("parsing trace line %d: %d hash ids for %d tokens, want %d", line, len(r.HashIDs), r.InputLength, want)
		}
		rows = append(rows, r)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("reading trace: %w", err)
	}
	return rows, nil
}

// promptTokens is the row's scaled prompt: every hash id stands for a run of 64 token ids that depends on the id alone,
// so rows that share ids share exactly those runs. The last run is cut off at input_length/8. A prompt has at least
// one token.
func (r *traceRow) promptTokens() []uint32 {
	n := max(1, r.InputLength/traceScale)
	tokens := make([]uint32, 0, len(r.HashIDs)*scaledBlock)
	for _, id := range r.HashIDs {
		tokens = appendRun(tokens, id)
	}
	return tokens[:n]
}

// outputTokens is the row's scaled answer length, at least one token.
func (r *traceRow) outputTokens() int {
	return max(1, r.OutputLength/traceScale)
}

// appendRun appends the 64 token ids of a hash id: outputs of SplitMix64 (Steele, Lea and Flood, "Fast splittable
// pseudorandom number generators", 2014) seeded with the id's position in its sequence, folded into the vocabulary.
func appendRun(dst []uint32, id uint64) []uint32 {
	for i := range uint64(scaledBlock) {
		z := (id*scaledBlock + i + 1) * 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		dst = append(dst, uint32((z^z>>31)%traceVocab))
	}
	return dst
}

// traceWorkload replays at most limit rows (all for 0) of the excerpt, its timestamps divided by speed. Rows whose
// prompt and answer exceed the engines' context are dropped and counted.
func traceWorkload(model string, speed float64, limit int) (*workload, error) {
	gz, err := testdata.ReadFile("testdata/mooncake-200.jsonl.gz")
	if err != nil {
		return nil, fmt.Errorf("reading trace: %w", err)
	}
	rows, err := readTrace(gz)
	if err != nil {
		return nil, err
	}
	if limit > 0 && limit < len(rows) {
		rows = rows[:limit]
	}
	w := &workload{Name: "mooncake", Engine: traceEngine()}
	for i := range rows {
		s, ok, err := rows[i].session(strconv.Itoa(i), model, speed, w.Engine.MaxModelLen)
		if err != nil {
			return nil, err
		}
		if !ok {
			w.Dropped++
			continue
		}
		w.Sessions = append(w.Sessions, s)
	}
	w.Requests = countTurns(w.Sessions)
	w.About = fmt.Sprintf("first %d rows of the Mooncake conversation trace as token-id prompts, lengths divided by %d "+
		"(a block of %d is %d ids), %gx the trace's pace; %d rows over the engines' context of %d tokens dropped",
		len(rows), traceScale, traceBlock, scaledBlock, speed, w.Dropped, w.Engine.MaxModelLen)
	return w, nil
}

// session is the row as a session of one request; ok is false if it exceeds maxModelLen.
func (r *traceRow) session(id, model string, speed float64, maxModelLen int) (s session, ok bool, err error) {
	tokens, output := r.promptTokens(), r.outputTokens()
	if len(tokens)+output > maxModelLen {
		return session{}, false, nil
	}
	body, err := json.Marshal(struct {
		generation
		Prompt []uint32 `json:"prompt"`
	}{newGeneration(model, output), tokens})
	if err != nil {
		return session{}, false, fmt.Errorf("encoding trace row %s: %w", id, err)
	}
	return session{
		ID:    id,
		Start: time.Duration(float64(r.Timestamp) * float64(time.Millisecond) / speed),
		Turns: []turn{{
			Path: "/v1/completions",
			Body: func([]string) ([]byte, error) { return body, nil },
		}},
	}, true, nil
}
