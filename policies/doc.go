// Package policies chooses the replica that serves a request.
//
// A [Policy] sees one request and the replicas that may serve it, each with its load and with how much of the prompt it
// is predicted to have cached, and names one of them. It knows nothing of HTTP, of the engines, of tokens or of how the
// numbers came to be, it reads no clock and starts no goroutine: the same input and the same history give the same
// choice, in a router as in virtual time.
//
// | policy                            | chooses                                    | looks at                            |
// |-----------------------------------|--------------------------------------------|-------------------------------------|
// | round_robin, [NewRoundRobin]      | the next replica in turn                   | names                               |
// | least_request, [NewLeastRequest]  | the fewest requests in flight              | requests in flight                  |
// | cost_model, [NewCostModel]        | the lowest estimated time to first token   | queue, cache, requests in flight    |
//
// Which replicas are offered at all (healthy, not ejected, serving the model, with room) is settled before a policy is
// asked, so that no policy can prefer a warm cache to a healthy replica.
//
// Concurrency: a policy is not safe for concurrent use. Deciding and taking the lease have to happen under one lock
// anyway, or requests that arrive together would all see the same idle replica.
//
// Cost: every policy is O(n) in the candidates and allocates nothing once Decision.Estimates has grown to their number.
// Package policytest holds the checks that every policy must pass.
package policies
