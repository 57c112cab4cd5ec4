package fleet

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func readModels(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestParseModelsOfRealEngines(t *testing.T) {
	const dir = "/srv/models/engines/tiny-qwen3"
	for name, want := range map[string][]Card{
		"models-alias":   {{ID: "tiny-qwen3", Root: dir, MaxModelLen: 4096}, {ID: "tiny-alias", Root: dir, MaxModelLen: 4096}},
		"models-default": {{ID: dir, Root: dir, MaxModelLen: 40960}},
	} {
		t.Run(name, func(t *testing.T) {
			body := readModels(t, name)
			got, err := ParseModels(body)
			if err != nil {
				t.Fatal(err)
			}
			rest := body
			for i := range got {
				var found bool
				if _, rest, found = bytes.Cut(rest, got[i].Raw); !found {
					t.Errorf("card %d is not the engine's bytes: %s", i, got[i].Raw)
				}
				got[i].Raw = nil
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("cards (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseModelsKeepsBytesAndAdapters(t *testing.T) {
	raw := `{ "id" : "ad\u0061pter","parent":"base", "root":null, "max_model_len":null, "x": 1.0e0 }`
	body := []byte(`{"data": [ ` + raw + ` ]}`)
	got, err := ParseModels(body)
	if err != nil {
		t.Fatal(err)
	}
	clear(body)
	if diff := cmp.Diff([]Card{{ID: "adapter", Parent: "base", Raw: json.RawMessage(raw)}}, got); diff != "" {
		t.Errorf("cards (-want +got):\n%s", diff)
	}
}

func TestParseModelsRefuses(t *testing.T) {
	for _, tc := range []struct{ name, body, fragment string }{
		{"nothing", "", "model list"},
		{"a page", "<html>", "model list"},
		{"an error body", `{"error":{"message":"busy"}}`, "no models"},
		{"an empty list", `{"object":"list","data":[]}`, "no models"},
		{"a card without an id", `{"data":[{"id":"a"},{"object":"model"}]}`, "model 1: no id"},
		{"a card that is no object", `{"data":["a"]}`, "model 0"},
		{"a null card", `{"data":[null]}`, "model 0: no id"},
		{"a length that is no number", `{"data":[{"id":"a","max_model_len":"big"}]}`, "model 0"},
		{"nesting without end", `{"data":` + strings.Repeat("[", 100_000), "model list"},
		{"too many cards", `{"data":[` + strings.Repeat(`{"id":"a"},`, 2000) + `{"id":"a"}]}`, "2001 models"},
		{"a long body", strings.Repeat(" ", MaxModelsBytes+1), "over 1048576 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseModels([]byte(tc.body))
			if err == nil || !strings.Contains(err.Error(), tc.fragment) || got != nil {
				t.Errorf("got %v, error %v, want none and an error with %q", got, err, tc.fragment)
			}
		})
	}
}

func FuzzParseModels(f *testing.F) {
	f.Add(readModels(f, "models-alias"))
	f.Add([]byte(`{"data":[{"id":"a","ID":"b","max_model_len":-1}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		cards, err := ParseModels(body)
		if err != nil {
			return
		}
		for _, c := range cards {
			if c.ID == "" || c.MaxModelLen < 0 || !json.Valid(c.Raw) || !bytes.Contains(body, c.Raw) {
				t.Fatalf("senseless card %+v of %q", c, body)
			}
		}
	})
}
