package index

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"testing"
)

// scenario is one line of testdata/vllm-0.32.0-steps.jsonl.gz.
type scenario struct {
	Scenario     string `json:"scenario"`
	Note         string `json:"note"`
	BlockSize    int    `json:"block_size"`
	UsableBlocks int    `json:"usable_blocks"`
	Steps        []struct {
		Label     string   `json:"label"`
		Prompt    []uint32 `json:"prompt"`
		CacheSalt string   `json:"cache_salt"`
		Reset     bool     `json:"reset"` // the engine's prefix cache was reset before
		Outputs   int      `json:"outputs"`
		Cached    int      `json:"cached"`
	} `json:"steps"`
}

func readScenarios(t *testing.T) []scenario {
	t.Helper()
	f, err := os.Open("testdata/vllm-0.32.0-steps.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []scenario
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var sc scenario
		if err := json.Unmarshal(lines.Bytes(), &sc); err != nil {
			t.Fatal(err)
		}
		all = append(all, sc)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestPredictionsEqualWhatTheEngineReported replays captured requests: every prediction must be the engine's own
// number of cached tokens.
func TestPredictionsEqualWhatTheEngineReported(t *testing.T) {
	t.Parallel()
	steps := 0
	for _, sc := range readScenarios(t) {
		steps += len(sc.Steps)
		t.Run(sc.Scenario, func(t *testing.T) {
			t.Parallel()
			x := New(Config{})
			r := x.AddReplica("vllm", sc.BlockSize, sc.UsableBlocks)
			r.Record(NewPrompt([]uint32{77}, Root("tiny-qwen3", "", "", sc.BlockSize), sc.BlockSize)).Finish(1)
			for i, step := range sc.Steps {
				if step.Reset {
					r.Reset()
				}
				p := NewPrompt(step.Prompt, Root("tiny-qwen3", "", step.CacheSalt, sc.BlockSize), sc.BlockSize)
				if got := x.CachedTokens(p, []*Replica{r}, nil)[0]; got != step.Cached {
					t.Errorf("step %d (%s), %d tokens: predicted %d cached, the engine had %d",
						i, step.Label, len(step.Prompt), got, step.Cached)
				}
				pl := r.Record(p)
				if got := pl.holding.hits * sc.BlockSize; got != step.Cached {
					t.Errorf("step %d (%s): recorded %d cached, the engine had %d", i, step.Label, got, step.Cached)
				}
				pl.Finish(step.Outputs)
				checkReplica(t, r)
			}
		})
	}
	if steps != 114 {
		t.Errorf("%d steps replayed, want 114", steps)
	}
}
