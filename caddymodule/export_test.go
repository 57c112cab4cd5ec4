package caddymodule

import "github.com/caddyserver/caddy/v2"

// StateInUse counts what the pools hold for all configurations and requests together, by pool.
func StateInUse() map[string]int {
	pools := map[string]*caddy.UsagePool{
		"fleets": fleetPool, "replicas": replicaPool, "policies": policyPool, "tokenizers": tokenizerPool, "metrics": metricsPool,
	}
	count := make(map[string]int)
	for name, pool := range pools {
		count[name] = 0
		pool.Range(func(any, any) bool { count[name]++; return true })
	}
	return count
}
