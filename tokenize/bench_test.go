package tokenize

import (
	"encoding/json"
	"strings"
	"testing"
)

// longChat is a chat of about 8,000 of Qwen3's tokens: prose and code from the
// golden requests, no message twice.
func longChat(b *testing.B) []byte {
	var messages []map[string]string
	total := 0
	for _, c := range lines[goldenCase](b, "testdata/qwen3/golden.jsonl.gz") {
		var r struct{ Messages []struct{ Content any } }
		if err := json.Unmarshal(c.Request, &r); err != nil || c.Error != "" || strings.HasPrefix(c.ID, "fuzz") {
			continue
		}
		for _, m := range r.Messages {
			text, ok := m.Content.(string)
			if ok && total < 8000 && !strings.HasPrefix(text, "You are a helpful") {
				ids, _ := qwen3(b).Tokenizer().Append(nil, text)
				total += len(ids) + 5
				messages = append(messages, map[string]string{"role": []string{"user", "assistant"}[len(messages)%2], "content": text})
			}
		}
	}
	body, err := json.Marshal(map[string]any{"model": "m", "messages": messages})
	if err != nil {
		b.Fatal(err)
	}
	return body
}

// English prose of about 8,000 tokens, every paragraph different.
func proseChat(b *testing.B) []byte {
	text := make([]byte, 0, 40_000)
	sim := NewSim().Tokenizer()
	for i := range 8000 {
		text = sim.Decode(text, []uint32{SimText(1, i)})
		if i%17 == 16 {
			text = append(text[:len(text)-1], ". "...)
		}
	}
	body, err := json.Marshal(map[string]any{"messages": []map[string]string{{"role": "user", "content": string(text)}}})
	if err != nil {
		b.Fatal(err)
	}
	return body
}

func benchmarkChat(b *testing.B, m *Model, body []byte) {
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	tokens := 0
	for b.Loop() {
		p, err := m.Chat(body)
		if err != nil {
			b.Fatal(err)
		}
		tokens = len(p.Tokens)
	}
	b.ReportMetric(float64(tokens), "tokens")
}

func BenchmarkQwen3MixedChat(b *testing.B) { benchmarkChat(b, qwen3(b), longChat(b)) }
func BenchmarkQwen3ProseChat(b *testing.B) { benchmarkChat(b, qwen3(b), proseChat(b)) }
func BenchmarkSimProseChat(b *testing.B)   { benchmarkChat(b, NewSim(), proseChat(b)) }

func BenchmarkSimAppend(b *testing.B) {
	text := strings.Repeat("the sun and the moon ", 2000)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	var ids []uint32
	for b.Loop() {
		ids = appendSim(ids[:0], text)
	}
}

func BenchmarkQwen3HostileMegabyte(b *testing.B) {
	for name, text := range hostileTexts(1 << 20) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := qwen3(b).Tokenizer().Append(nil, text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoadQwen3(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := LoadHuggingFace("testdata/qwen3"); err != nil {
			b.Fatal(err)
		}
	}
}
