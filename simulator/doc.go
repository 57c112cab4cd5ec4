// Package simulator is a Caddy handler that answers like a vLLM 0.32.0 server without a model or a GPU: the HTTP API,
// its errors and metrics on top of the scheduler, block pool and prefix cache of package engine, driven in real time.
//
// It is for testing and benchmarking what stands in front of engines. It does not sample, constrain or understand text;
// what it cannot imitate it refuses with an error that names the parameter.
//
// Handlers are safe for concurrent use. An engine runs on one goroutine, which lives only while requests are in the
// engine; handlers hand requests to it and read tokens from a buffer of their own. Engines are kept in a pool (state.go)
// over reloads. A step costs some 150 ns for each running sequence (BenchmarkDriverStep), an SSE chunk about 100 ns
// and its write; a request's memory is its body, its token ids and four bytes for each token its client has not read.
package simulator
