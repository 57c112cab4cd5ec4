package index

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkCachedTokens looks up a prompt of 512 blocks that every replica holds to a different depth, in an index
// that holds little else, and in one of half a million more blocks of which none is in the CPU's cache.
func BenchmarkCachedTokens(b *testing.B) {
	for _, others := range []int{0, 500_000} {
		for _, n := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("replicas=%d/others=%d", n, others), func(b *testing.B) {
				benchmarkCachedTokens(b, n, others)
			})
		}
	}
}

func benchmarkCachedTokens(b *testing.B, n, others int) {
	const blocks = 512
	x := New(Config{})
	var prompts []*Prompt
	for i := range uint32(1 + others/blocks) {
		prompts = append(prompts, promptOf(i, 16*blocks+1, 16))
	}
	var replicas []*Replica
	for i := range n {
		r := x.AddReplica(fmt.Sprint(i), 16, blocks*(len(prompts)+1))
		for _, p := range prompts {
			depth := blocks - blocks*i/n
			r.Record(NewPrompt(p.Tokens[:16*depth], p.Root, 16)).Finish(1)
		}
		replicas = append(replicas, r)
	}
	rand.Shuffle(len(prompts), func(i, j int) { prompts[i], prompts[j] = prompts[j], prompts[i] })
	dst := make([]int, 0, n)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		dst = x.CachedTokens(prompts[i%len(prompts)], replicas, dst)
		i++
	}
}

// BenchmarkCachedTokensWithAnswer looks up a next turn that continues an answer on each of 8 replicas.
func BenchmarkCachedTokensWithAnswer(b *testing.B) {
	x := New(Config{})
	p := promptOf(1, 16*256+5, 16)
	next := extend(p, 2, 16*256, 16)
	var replicas []*Replica
	for i := range 8 {
		r := x.AddReplica(fmt.Sprint(i), 16, 10_000)
		r.Record(p).Finish(1000)
		replicas = append(replicas, r)
	}
	dst := make([]int, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		dst = x.CachedTokens(next, replicas, dst)
	}
}

// BenchmarkRecordFinish serves prompts of 512 blocks on a full pool: all of them hits, or all taken and as many evicted.
func BenchmarkRecordFinish(b *testing.B) {
	const blocks = 512
	for _, kind := range []string{"hits", "evictions"} {
		b.Run(kind, func(b *testing.B) {
			_, r, prompts := fullReplica(blocks, 50_000)
			if kind == "hits" {
				prompts = prompts[len(prompts)-2:]
				r.Record(prompts[0]).Finish(1)
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				r.Record(prompts[i%len(prompts)]).Finish(1)
				i++
			}
		})
	}
}

// BenchmarkRecordTakeBack records prompts of 512 new blocks on a full pool and takes them back.
func BenchmarkRecordTakeBack(b *testing.B) {
	_, r, prompts := fullReplica(512, 50_000)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		r.Record(prompts[i%(len(prompts)/4)]).TakeBack()
		i++
	}
}

// fullReplica returns a replica whose pool is full with the last of prompts; twice as many were recorded.
func fullReplica(blocks, capacity int) (*Index, *Replica, []*Prompt) {
	x := New(Config{})
	r := x.AddReplica("r", 16, capacity)
	var prompts []*Prompt
	for i := range uint32(2 * capacity / blocks) {
		p := promptOf(i, 16*blocks+1, 16)
		r.Record(p).Finish(1)
		prompts = append(prompts, p)
	}
	return x, r, prompts
}

// BenchmarkCachedTokensParallel looks up while one goroutine in ten records.
func BenchmarkCachedTokensParallel(b *testing.B) {
	x, r, prompts := fullReplica(512, 50_000)
	replicas := []*Replica{r}
	for i := range 7 {
		replicas = append(replicas, x.AddReplica(fmt.Sprint(i), 16, 50_000))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		dst := make([]int, 0, len(replicas))
		for i := 0; pb.Next(); i++ {
			p := prompts[i%len(prompts)]
			dst = x.CachedTokens(p, replicas, dst)
			if i%10 == 0 {
				replicas[i/10%8].Record(p).Finish(1)
			}
		}
	})
}
