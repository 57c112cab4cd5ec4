package simulator

import (
	"net/http"
	"testing"

	"github.com/inferrail/inferrail/internal/openai"
)

// sink is a response writer that keeps nothing.
type sink struct{ h http.Header }

func (s sink) Header() http.Header         { return s.h }
func (s sink) Write(b []byte) (int, error) { return len(b), nil }
func (s sink) WriteHeader(int)             {}
func (s sink) FlushError() error           { return nil }

func BenchmarkChatChunk(b *testing.B) {
	h := openai.Head{ID: "chatcmpl-0123456789abcdef", Created: 1796079736, Model: "inferrail/sim-8b"}
	c := openai.Chunk{Text: "word"}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = openai.AppendChatChunk(buf[:0], h, &c)
	}
}

// BenchmarkCompletion answers a request of 1000 prompt tokens and 16 generated ones, without model time.
func BenchmarkCompletion(b *testing.B) {
	s := &Simulator{Model: "m", Instance: b.Name(), ZeroLatency: true}
	provision(b, s)
	body := `{"prompt":` + ids(1, 1000) + `,"max_tokens":16}`
	b.ReportAllocs()
	for b.Loop() {
		if err := s.ServeHTTP(sink{make(http.Header)}, completion(b.Context(), body), nil); err != nil {
			b.Fatal(err)
		}
	}
}
