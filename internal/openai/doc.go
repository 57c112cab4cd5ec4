// Package openai holds what the router and the simulator share of the OpenAI HTTP API: a scanner that finds the few
// fields of a request that routing needs without decoding the rest, error bodies in the API's shape, and the response
// shapes of vLLM.
//
// Nothing here keeps state; all functions are safe for concurrent use.
package openai
