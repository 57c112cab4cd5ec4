package index

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// Hash names a block together with everything before it: the 128-bit XXH3 of the chain up to and including the
// block. Hi and Lo are the two halves of XXH3's canonical big-endian form.
type Hash struct{ Hi, Lo uint64 }

// rootTag separates roots from other uses of the hash, and versions of this chain from each other.
const rootTag = "inferrail/prefix/1"

// hashBytes is the size of a hash's canonical form.
const hashBytes = 16

// stackTokens is the longest block that is hashed from a buffer on the stack; engines' usual blocks have 16 to 128
// tokens. Longer ones are streamed.
const stackTokens = 128

// littleEndian tells whether a []uint32 in memory already is the tokens' little-endian bytes.
var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// Root returns the start of the chain for prompts of one model, LoRA adapter ("" for none) and cache salt ("" for
// none), cut into blocks of blockSize tokens. Chains with different roots share no hash. The preimage is rootTag,
// then the three strings, each with its length before it, then the block size; numbers are 8 bytes, little-endian.
func Root(model, adapter, cacheSalt string, blockSize int) Hash {
	var stack [256]byte
	b := append(stack[:0], rootTag...)
	for _, field := range [...]string{model, adapter, cacheSalt} {
		b = binary.LittleEndian.AppendUint64(b, uint64(len(field)))
		b = append(b, field...)
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(blockSize))
	return sum(b)
}

// Next returns the hash of the block that follows parent: XXH3-128 over the parent's 16 canonical bytes and the
// tokens as 4 little-endian bytes each. It does not allocate.
func Next(parent Hash, block []uint32) Hash {
	if len(block) > stackTokens {
		return nextStreamed(parent, block)
	}
	var stack [hashBytes + 4*stackTokens]byte
	return nextBuffered(stack[:], parent, block)
}

// AppendHashes appends the hashes of the full blocks of tokens to dst and returns it. A trailing partial block has
// no hash. A blockSize below 1 appends nothing.
func AppendHashes(dst []Hash, root Hash, tokens []uint32, blockSize int) []Hash {
	if blockSize < 1 {
		return dst
	}
	var stack [hashBytes + 4*stackTokens]byte
	for parent := root; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		if blockSize <= stackTokens {
			parent = nextBuffered(stack[:], parent, tokens[:blockSize])
		} else {
			parent = nextStreamed(parent, tokens[:blockSize])
		}
		dst = append(dst, parent)
	}
	return dst
}

// nextBuffered is Next by way of buf, which must have room for the parent and the block.
func nextBuffered(buf []byte, parent Hash, block []uint32) Hash {
	binary.BigEndian.PutUint64(buf, parent.Hi)
	binary.BigEndian.PutUint64(buf[8:], parent.Lo)
	n := hashBytes + 4*len(block)
	putTokens(buf[hashBytes:n], block)
	return sum(buf[:n])
}

// nextStreamed is Next for blocks of any size.
func nextStreamed(parent Hash, block []uint32) Hash {
	var (
		hasher xxh3.Hasher
		buf    [4 * stackTokens]byte
	)
	hasher.Reset()
	binary.BigEndian.PutUint64(buf[:], parent.Hi)
	binary.BigEndian.PutUint64(buf[8:], parent.Lo)
	hasher.Write(buf[:hashBytes])
	for len(block) > 0 {
		n := min(len(block), stackTokens)
		putTokens(buf[:4*n], block[:n])
		hasher.Write(buf[:4*n])
		block = block[n:]
	}
	h := hasher.Sum128()
	return Hash{Hi: h.Hi, Lo: h.Lo}
}

// putTokens writes tokens as 4 little-endian bytes each into dst, which is exactly that long. Where memory already
// has that form it is one copy: encoding 16 tokens one by one costs more than hashing them.
func putTokens(dst []byte, tokens []uint32) {
	if !littleEndian {
		encodeTokens(dst, tokens)
		return
	}
	copy(dst, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), 4*len(tokens)))
}

// encodeTokens is putTokens for any byte order.
func encodeTokens(dst []byte, tokens []uint32) {
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(dst[4*i:], t)
	}
}

func sum(b []byte) Hash {
	h := xxh3.Hash128(b)
	return Hash{Hi: h.Hi, Lo: h.Lo}
}
