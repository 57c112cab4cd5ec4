package index

// Prompt is what the index knows a prompt by: its token ids and the chained hashes of its full blocks. It is only
// read, so one Prompt may be used by any number of goroutines; its slices must not change while a call has it.
type Prompt struct {
	// Tokens are the prompt's token ids in order.
	Tokens []uint32
	// Hashes are the chained hashes of the prompt's full blocks: len(Tokens)/BlockSize of them.
	Hashes []Hash
	// Root is the start of the chain (see [Root]).
	Root Hash
	// BlockSize is the number of tokens in a block.
	BlockSize int
}

// NewPrompt hashes tokens into a Prompt. The Prompt keeps tokens and does not copy them. With a blockSize below 1
// the Prompt is one that no replica can hold.
func NewPrompt(tokens []uint32, root Hash, blockSize int) *Prompt {
	p := &Prompt{Tokens: tokens, Root: root, BlockSize: blockSize}
	if blockSize > 0 {
		p.Hashes = AppendHashes(make([]Hash, 0, len(tokens)/blockSize), root, tokens, blockSize)
	}
	return p
}

// usable tells whether the prompt is complete and can be recorded or looked up in blocks of blockSize.
func (p *Prompt) usable(blockSize int) bool {
	return p != nil && p.BlockSize > 0 && p.BlockSize == blockSize && len(p.Tokens) > 0 &&
		len(p.Hashes) == len(p.Tokens)/p.BlockSize
}

// limit returns the most blocks that a lookup can find: at least one token is always computed, so a prompt of
// exactly k blocks can find k-1 (vLLM 0.32.0, v1/core/kv_cache_manager.py: get_computed_blocks).
func (p *Prompt) limit() int { return (len(p.Tokens) - 1) / p.BlockSize }

// key returns the hash of the last of the prompt's first depth blocks, or the root when there is none.
func (p *Prompt) key(depth int) Hash {
	if depth == 0 {
		return p.Root
	}
	return p.Hashes[depth-1]
}

// tailHash returns the hash of the tokens between the prompt's first depth blocks and token end.
func (p *Prompt) tailHash(depth, end int) uint64 {
	return Next(p.key(depth), p.Tokens[depth*p.BlockSize:end]).Lo
}
