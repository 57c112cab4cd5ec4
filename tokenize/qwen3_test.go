package tokenize

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
)

var loadQwen3 = sync.OnceValues(func() (*Model, error) { return LoadHuggingFace("testdata/qwen3") })

func qwen3(t testing.TB) *Model {
	t.Helper()
	m, err := loadQwen3()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// lines decodes each line of a gzipped file of JSON objects.
func lines[T any](t testing.TB, name string) []T {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var out []T
	s := bufio.NewScanner(z)
	s.Buffer(nil, 64<<20)
	for s.Scan() {
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatalf("decoding a line of %s: %v", name, err)
		}
		out = append(out, v)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

type goldenCase struct {
	ID       string          `json:"id"`
	Request  json.RawMessage `json:"request"`
	Rendered string          `json:"rendered"`
	IDs      []uint32        `json:"ids"`
	Error    string          `json:"error"`
}

// Every request of the golden file gives vLLM's ids, or an error where vLLM
// gives one. Nothing is refused that vLLM accepts.
func TestQwen3Golden(t *testing.T) {
	t.Parallel()
	m := qwen3(t)
	same, failed := 0, 0
	for _, c := range lines[goldenCase](t, "testdata/qwen3/golden.jsonl.gz") {
		got, err := m.Chat(c.Request)
		if c.Error != "" {
			failed++
			var invalid *InvalidError
			var unsupported *UnsupportedError
			if !errors.As(err, &invalid) && !errors.As(err, &unsupported) {
				t.Errorf("%s: got error %v, vLLM's is %q", c.ID, err, c.Error)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			continue
		}
		text, err := m.Render(nil, c.Request)
		if err != nil || string(text) != c.Rendered {
			t.Errorf("%s: rendered %q (%v), want %q", c.ID, text, err, c.Rendered)
		}
		if !slices.Equal(got.Tokens, c.IDs) {
			t.Errorf("%s: got ids %d, want %d", c.ID, got.Tokens, c.IDs)
			continue
		}
		same++
	}
	t.Logf("%d requests identical, %d with an error as in vLLM", same, failed)
	if same < 180 || failed < 5 {
		t.Errorf("only %d and %d requests in the golden file", same, failed)
	}
}

func TestQwen3Strings(t *testing.T) {
	t.Parallel()
	m := qwen3(t)
	type stringCase struct {
		ID       string   `json:"id"`
		Rendered string   `json:"rendered"`
		IDs      []uint32 `json:"ids"`
	}
	cases := lines[stringCase](t, "testdata/qwen3/strings.jsonl.gz")
	bad := 0
	for _, c := range cases {
		got, err := m.Tokenizer().Append(nil, c.Rendered)
		if err != nil || !slices.Equal(got, c.IDs) {
			if bad++; bad <= 5 {
				t.Errorf("%s: %q gives %d (%v), want %d", c.ID, c.Rendered, got, err, c.IDs)
			}
		}
		if text := m.Tokenizer().Decode(nil, got); string(text) != nfc(c.Rendered) {
			t.Errorf("%s: %q decodes to %q", c.ID, c.Rendered, text)
		}
	}
	if len(cases) != 3000 || bad > 0 {
		t.Errorf("%d of %d strings differ", bad, len(cases))
	}
}
