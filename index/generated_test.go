package index

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestGeneratedTokensAreHeld finishes a placement with its generated tokens and asks for prompts that go on with all,
// some or none of them.
func TestGeneratedTokensAreHeld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const blockSize = 4
		tokens := func(label string, from, to int) []uint32 {
			return rapid.SliceOfN(rapid.Uint32Range(0, 3), from, to).Draw(t, label)
		}
		prompt, generated := tokens("prompt", 1, 30), tokens("generated", 1, 30)
		x := New(Config{})
		r := x.AddReplica("r", blockSize, 100)
		root := Root("m", "", "", blockSize)
		outputs := len(generated) + rapid.IntRange(0, 1).Draw(t, "a stop token")
		r.Record(NewPrompt(prompt, root, blockSize)).FinishWith(outputs, generated)

		// Everything but the newest token has been computed; a lookup stops one token short of the prompt.
		held := slices.Concat(prompt, generated)[:len(prompt)+outputs-1]
		same := rapid.IntRange(0, len(generated)).Draw(t, "same")
		next := slices.Concat(prompt, generated[:same], tokens("next", 1, 20))
		common := 0
		for common < min(len(held), len(next)) && held[common] == next[common] {
			common++
		}
		want := min(common/blockSize, (len(next)-1)/blockSize) * blockSize
		got := x.CachedTokens(NewPrompt(next, root, blockSize), []*Replica{r}, nil)
		if got[0] != want {
			t.Fatalf("prompt %v generated %v (%d outputs), next %v: %d cached tokens, want %d", prompt, generated, outputs, next, got[0], want)
		}
		checkReplica(t, r)
	})
}

// TestGeneratedTokensOfAnotherNumber are taken as unknown content.
func TestGeneratedTokensOfAnotherNumber(t *testing.T) {
	const blockSize = 4
	x := New(Config{})
	root := Root("m", "", "", blockSize)
	for _, n := range []int{0, 3, 9, 11} {
		r := x.AddReplica("r", blockSize, 100)
		prompt := []uint32{1, 2, 3, 4}
		r.Record(NewPrompt(prompt, root, blockSize)).FinishWith(10, make([]uint32, n))
		wantHashes := 3 // of 4 + 10 - 1 tokens
		if n < 9 || n > 10 {
			wantHashes = 1
		}
		if stats := r.Stats(); stats.Blocks != 3 || stats.Hashes != wantHashes {
			t.Errorf("%d tokens for 10 outputs: %+v", n, stats)
		}
	}
}
