package index

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// vector is one line of testdata/hash.json.
type vector struct {
	Model     string   `json:"model"`
	Adapter   string   `json:"adapter"`
	CacheSalt string   `json:"cache_salt"`
	BlockSize int      `json:"block_size"`
	Seed      uint64   `json:"seed"`
	Tokens    int      `json:"tokens"`
	IDs       []uint32 `json:"ids"`
	Root      string   `json:"root"`
	Hashes    []string `json:"hashes"`
}

func (v *vector) tokens() []uint32 {
	if v.IDs != nil {
		return v.IDs
	}
	ids, x := make([]uint32, v.Tokens), v.Seed
	for i := range ids {
		x = x * 48271 % 2147483647
		ids[i] = uint32(x % 151936)
	}
	return ids
}

func hexOf(h Hash) string {
	b := binary.BigEndian.AppendUint64(nil, h.Hi)
	return hex.EncodeToString(binary.BigEndian.AppendUint64(b, h.Lo))
}

func TestHashesAgreeWithAnotherImplementation(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/hash.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []vector
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) < 30 {
		t.Fatalf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		root := Root(v.Model, v.Adapter, v.CacheSalt, v.BlockSize)
		if got := hexOf(root); got != v.Root {
			t.Errorf("Root(%q, %q, %q, %d) = %s, want %s", v.Model, v.Adapter, v.CacheSalt, v.BlockSize, got, v.Root)
		}
		p := NewPrompt(v.tokens(), root, v.BlockSize)
		var got []string
		for _, h := range p.Hashes {
			got = append(got, hexOf(h))
		}
		if !slices.Equal(got, v.Hashes) {
			t.Errorf("model %q, block size %d, %d tokens:\n got %s\nwant %s", v.Model, v.BlockSize, v.Tokens, got, v.Hashes)
		}
	}
}

func TestTokensAreHashedAlikeOnAnyByteOrder(t *testing.T) {
	t.Parallel()
	for n := range 6 {
		tokens := []uint32{0, 1, 0x01020304, 0xffffffff, 0x80000000}[:n]
		fast, portable := make([]byte, 4*n), make([]byte, 4*n)
		putTokens(fast, tokens)
		encodeTokens(portable, tokens)
		if !slices.Equal(fast, portable) {
			t.Errorf("putTokens gives %x, encodeTokens %x", fast, portable)
		}
	}
}

func TestRootKeepsFieldsApart(t *testing.T) {
	t.Parallel()
	seen := map[Hash]string{}
	for _, fields := range [][3]string{
		{"ab", "c", ""}, {"a", "bc", ""}, {"abc", "", ""}, {"", "abc", ""}, {"", "", "abc"}, {"ab", "", "c"},
		{"", "", ""}, {"ab\x00", "c", ""}, {"ab", "\x00c", ""},
	} {
		for _, blockSize := range []int{1, 16, 32, 272} {
			h := Root(fields[0], fields[1], fields[2], blockSize)
			key := hexOf(h)
			if other, ok := seen[h]; ok {
				t.Errorf("%q with block size %d has the root %s of %s", fields, blockSize, key, other)
			}
			seen[h] = key
		}
	}
}

func TestNextAgreesWithAppendHashes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		blockSize := rapid.IntRange(1, 300).Draw(t, "block size")
		tokens := rapid.SliceOfN(rapid.Uint32(), 0, 700).Draw(t, "tokens")
		root := Root("m", "", "", blockSize)
		got := AppendHashes(nil, root, tokens, blockSize)
		if len(got) != len(tokens)/blockSize {
			t.Fatalf("%d hashes of %d tokens in blocks of %d", len(got), len(tokens), blockSize)
		}
		parent := root
		for i, h := range got {
			parent = Next(parent, tokens[i*blockSize:(i+1)*blockSize])
			if h != parent {
				t.Fatalf("block %d: AppendHashes %v, Next %v", i, h, parent)
			}
		}
	})
}

func TestChangedTokenChangesItsBlockAndLaterOnes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		blockSize := rapid.IntRange(1, 40).Draw(t, "block size")
		tokens := rapid.SliceOfN(rapid.Uint32(), 1, 400).Draw(t, "tokens")
		at := rapid.IntRange(0, len(tokens)-1).Draw(t, "changed token")
		root := Root("m", "", "", blockSize)
		before := AppendHashes(nil, root, tokens, blockSize)
		tokens[at] ^= 1 << rapid.IntRange(0, 31).Draw(t, "bit")
		after := AppendHashes(nil, root, tokens, blockSize)
		for i := range before {
			if same := before[i] == after[i]; same != (i < at/blockSize) {
				t.Fatalf("token %d changed, block size %d: block %d the same: %v", at, blockSize, i, same)
			}
		}
	})
}

func TestPrefixHashesTheSameInALongerPrompt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		blockSize := rapid.IntRange(1, 40).Draw(t, "block size")
		tokens := rapid.SliceOfN(rapid.Uint32(), 1, 400).Draw(t, "tokens")
		n := rapid.IntRange(0, len(tokens)).Draw(t, "prefix")
		root := Root("m", "", "", blockSize)
		whole := AppendHashes(nil, root, tokens, blockSize)
		if part := AppendHashes(nil, root, tokens[:n], blockSize); !slices.Equal(part, whole[:len(part)]) {
			t.Fatalf("first %d of %d tokens, block size %d: %v is no prefix of %v", n, len(tokens), blockSize, part, whole)
		}
	})
}

func TestSaltsSeparateChains(t *testing.T) {
	t.Parallel()
	tokens := (&vector{Seed: 5, Tokens: 1024}).tokens()
	seen := map[Hash]string{}
	for _, salt := range []string{"", "a", "b", "aa"} {
		for _, h := range AppendHashes(nil, Root("m", "", salt, 16), tokens, 16) {
			if other, ok := seen[h]; ok {
				t.Fatalf("salts %q and %q share %v", salt, other, h)
			}
			seen[h] = salt
		}
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	tokens := (&vector{Seed: 5, Tokens: 4096}).tokens()
	for _, blockSize := range []int{1, 16, 32, 128, 129, 1024} {
		root := Root("m", "", "", blockSize)
		dst := make([]Hash, 0, len(tokens)/blockSize)
		if n := testing.AllocsPerRun(10, func() {
			root = Next(root, tokens[:blockSize])
			dst = AppendHashes(dst[:0], root, tokens, blockSize)
		}); n != 0 {
			t.Errorf("block size %d: %v allocations", blockSize, n)
		}
	}
}

func TestNoBlockSizeGivesNoHashes(t *testing.T) {
	t.Parallel()
	for _, blockSize := range []int{0, -1} {
		p := NewPrompt([]uint32{1, 2, 3}, Root("m", "", "", blockSize), blockSize)
		if len(p.Hashes) != 0 || p.usable(blockSize) {
			t.Errorf("block size %d: %d hashes, usable %v", blockSize, len(p.Hashes), p.usable(blockSize))
		}
	}
}

func BenchmarkHashing(b *testing.B) {
	tokens := (&vector{Seed: 5, Tokens: 512 * 16}).tokens()
	root := Root("m", "", "", 16)
	dst := make([]Hash, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendHashes(dst[:0], root, tokens, 16)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/block")
}
