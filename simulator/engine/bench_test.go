package engine

import "testing"

// server is sized like one GPU's engine.
var server = Config{
	BlockSize: 16, NumGPUBlocks: 1 << 16, MaxNumSeqs: 256, MaxNumBatchedTokens: 8192, MaxModelLen: 1 << 19,
	EnablePrefixCaching: true, KVEvents: true, Latency: gpu,
}

// decoding returns an engine in which n requests decode.
func decoding(tb tester, n int) *Engine {
	e := mustNew(tb, server)
	for id := range n {
		mustAdd(tb, e, Request{ID: uint64(id), Prompt: stream(id, 16+id%16), MaxTokens: 400_000, Next: zeros})
	}
	e.Schedule(0)
	e.Complete()
	return e
}

// The engine is replaced before its pool runs out.
func BenchmarkDecodeStep256(b *testing.B) {
	b.ReportAllocs()
	e, left := decoding(b, 256), 0
	for b.Loop() {
		if left--; left < 0 {
			b.StopTimer()
			e, left = decoding(b, 256), 3000
			b.StartTimer()
		}
		e.Schedule(0)
		if r := e.Complete(); len(r.Outputs) != 256 {
			b.Fatal(len(r.Outputs))
		}
	}
}

func BenchmarkAdmission8k(b *testing.B) {
	for _, bc := range []struct {
		name   string
		prompt func(i int) []uint32
	}{
		{"cold", func(i int) []uint32 { return stream(i%1024, 8192) }}, // evicts once the pool has filled
		{"warm", func(int) []uint32 { return stream(1, 8192) }},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			e := mustNew(b, server)
			var id uint64
			for b.Loop() {
				b.StopTimer()
				prompt := bc.prompt(int(id))
				b.StartTimer()
				id++
				mustAdd(b, e, Request{ID: id, Prompt: prompt, MaxTokens: 1, Next: zeros})
				for e.Len() > 0 {
					e.Schedule(0)
					e.Complete()
				}
			}
		})
	}
}
