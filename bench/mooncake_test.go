package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestTraceExcerptConverts(t *testing.T) {
	t.Parallel()
	gz, err := testdata.ReadFile("testdata/mooncake-200.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := readTrace(gz)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != 200 {
		t.Fatalf("got %d rows, want 200", len(rows))
	}
	// Facts of the published file.
	if r := rows[0]; r.InputLength != 6758 || r.OutputLength != 500 || len(r.HashIDs) != 14 {
		t.Errorf("first row is %+v", r)
	}
	if got := rows[199].Timestamp; got != 72_000 {
		t.Errorf("last row is at %d ms, want 72000", got)
	}
	total := 0
	for i := range rows {
		tokens := rows[i].promptTokens()
		if want := rows[i].InputLength / 8; len(tokens) != want {
			t.Errorf("row %d: %d tokens, want %d", i, len(tokens), want)
		}
		if want := max(1, rows[i].OutputLength/8); rows[i].outputTokens() != want {
			t.Errorf("row %d: %d output tokens, want %d", i, rows[i].outputTokens(), want)
		}
		total += len(tokens)
	}
	if total != 347_681 {
		t.Errorf("the prompts have %d tokens", total)
	}
}

func TestTraceWorkloadDropsAndCounts(t *testing.T) {
	t.Parallel()
	w, err := traceWorkload("m", 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	if w.Dropped != 8 || len(w.Sessions) != 192 || w.Requests != 192 {
		t.Errorf("%d dropped, %d sessions, %d requests; want 8, 192, 192", w.Dropped, len(w.Sessions), w.Requests)
	}
	last := w.Sessions[len(w.Sessions)-1]
	if last.Start != 36*time.Second {
		t.Errorf("at twice the pace the last row is at %s, want 36s", last.Start)
	}
	body, err := last.Turns[0].Body(nil)
	if err != nil {
		t.Fatal(err)
	}
	var req map[string]any
	if err := json.Unmarshal(body, &req); err != nil {
		t.Fatal(err)
	}
	if req["model"] != "m" || req["stream"] != true || req["ignore_eos"] != true || len(req["prompt"].([]any)) == 0 {
		t.Errorf("body is %.200s", body)
	}
}

func TestRowsShareExactlyTheRunsOfSharedIDs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		prefix := rapid.SliceOfN(rapid.Uint64(), 1, 5).Draw(t, "prefix")
		a := append(slices.Clone(prefix), rapid.Uint64().Draw(t, "a"))
		b := append(slices.Clone(prefix), rapid.Uint64().Filter(func(id uint64) bool { return id != a[len(a)-1] }).Draw(t, "b"))
		ra := traceRow{InputLength: traceBlock * len(a), HashIDs: a}
		rb := traceRow{InputLength: traceBlock * len(b), HashIDs: b}
		ta, tb := ra.promptTokens(), rb.promptTokens()
		shared := scaledBlock * len(prefix)
		if !slices.Equal(ta[:shared], tb[:shared]) {
			t.Fatalf("the first %d tokens differ", shared)
		}
		// A block of 16 is the least that engines share.
		if slices.Equal(ta[shared:shared+blockSize], tb[shared:shared+blockSize]) {
			t.Fatalf("different ids share a block")
		}
	})
}

func TestRunsOfDifferentIDsShareNoBlock(t *testing.T) {
	t.Parallel()
	seen := map[[blockSize]uint32]uint64{}
	for id := range uint64(20_000) {
		run := appendRun(nil, id)
		if len(run) != 64 {
			t.Fatalf("a run has %d tokens", len(run))
		}
		if again := appendRun(nil, id); !slices.Equal(run, again) {
			t.Fatalf("id %d: two calls differ", id)
		}
		for b := range slices.Chunk(run, blockSize) {
			if slices.Max(b) >= traceVocab {
				t.Fatalf("id %d: token %d is outside the vocabulary", id, slices.Max(b))
			}
			if other, ok := seen[[blockSize]uint32(b)]; ok {
				t.Fatalf("ids %d and %d share a block", id, other)
			}
			seen[[blockSize]uint32(b)] = id
		}
	}
}

func TestPartialLastBlockIsCutOff(t *testing.T) {
	t.Parallel()
	full := traceRow{InputLength: 2 * traceBlock, HashIDs: []uint64{7, 8}}
	for _, tc := range []struct{ input, want int }{
		{513, 64}, {520, 65}, {1023, 127}, {1024, 128},
	} {
		r := traceRow{InputLength: tc.input, HashIDs: []uint64{7, 8}}
		got := r.promptTokens()
		if len(got) != tc.want || !slices.Equal(got, full.promptTokens()[:tc.want]) {
			t.Errorf("input length %d: got %d tokens, want the first %d", tc.input, len(got), tc.want)
		}
	}
	if short := (&traceRow{InputLength: 3, OutputLength: 3, HashIDs: []uint64{1}}); len(short.promptTokens()) != 1 || short.outputTokens() != 1 {
		t.Errorf("a row of 3 and 3 tokens must keep one of each")
	}
}

func TestReadTraceRejectsBrokenRows(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		`{"input_length": 513, "hash_ids": [1]}`:       "1 hash ids for 513 tokens, want 2",
		`{"input_length": 0, "hash_ids": []}`:          "0 hash ids for 0 tokens",
		`{"input_length": 1, "hash_ids": [-1]}`:        "line 1",
		`{"input_length": 1, "hash_ids": [1]}` + "\n{": "line 2",
	} {
		var gz bytes.Buffer
		zw := gzip.NewWriter(&gz)
		if _, err := zw.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		zw.Close()
		if _, err := readTrace(gz.Bytes()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %q in it", line, err, want)
		}
	}
	if _, err := readTrace([]byte("not gzip")); err == nil {
		t.Error("no error for a file that is no gzip")
	}
}
