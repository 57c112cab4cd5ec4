// Package tokenize turns a request body (POST /v1/chat/completions or
// /v1/completions) into the token ids that the engine computes for it.
//
// A [Model] joins a [Tokenizer] (text to ids) and a [Template] (messages to
// text). [LoadHuggingFace] reads both from a model directory and follows
// vLLM 0.32.0 with transformers 5.19; [NewSim] gives the pair that the
// simulator uses. A request is followed exactly or refused: an
// [UnsupportedError] names, with a short reason from a fixed set, what is not
// followed, so that a router can route without a prediction; an [InvalidError]
// says that the engine will refuse the request too. Ids are never guessed. The
// converse does not hold: a request that the engine refuses for reasons that
// do not touch the prompt (a bad temperature, say) is tokenized all the same.
// An engine is taken to run with the defaults of the options that change
// prompts: no --chat-template, no default template keywords, tools shown
// whatever tool_choice says.
//
// Not in this package: block hashes and cache_salt (package index), image and
// audio inputs, batches of prompts, downloads. Nothing here logs, opens a
// connection or, but for the longest wait in a Pool, reads a clock.
//
// Models are immutable and safe for concurrent use; a [Pool] bounds how many
// requests are tokenized at once. A chat of 8,000 tokens takes about 0.5 ms,
// JSON included (BenchmarkQwen3ProseChat, one core). Every step is linear in the
// body, or n log n for a long run without spaces, and allocates at most some
// tens of bytes for each of the body's.
package tokenize
