package policies

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// CostModelConfig says how fast an engine computes prompts and how unequally a [CostModel] may load replicas.
// Its fields are taken as they are, zeros included; start from [DefaultCostModelConfig].
type CostModelConfig struct {
	// PrefillToken is a, the seconds to compute one uncached token. Default: 0.0001. Finite, not negative.
	PrefillToken float64 `json:"prefill_token"`
	// PrefillPair is b, the seconds for one uncached token to attend to one earlier token. Default: 3.3e-9. Finite, not
	// negative. It is what makes long prompts cost more than in proportion.
	PrefillPair float64 `json:"prefill_pair"`
	// PrefillFixed is d, the seconds that every prefill takes whatever its length. Default: 0.005. Finite, not negative.
	PrefillFixed float64 `json:"prefill_fixed"`
	// Epsilon is how far above its equal share of the requests a replica may go before bounded load sets it aside: 1.0 is
	// twice its share, 0 an equal share. Small values cost cache hits. Default: 1.0. Finite, not negative.
	Epsilon float64 `json:"epsilon"`
}

// DefaultCostModelConfig describes an 8B model on one GPU of 24 GB, and twice its share for each replica.
func DefaultCostModelConfig() CostModelConfig {
	return CostModelConfig{PrefillToken: 0.0001, PrefillPair: 3.3e-9, PrefillFixed: 0.005, Epsilon: 1.0}
}

// Validate reports every field whose value makes no sense, each by its name in the configuration.
func (c CostModelConfig) Validate() error {
	var faults []error
	for _, f := range []struct {
		name  string
		value float64
	}{
		{"prefill_token", c.PrefillToken},
		{"prefill_pair", c.PrefillPair},
		{"prefill_fixed", c.PrefillFixed},
		{"epsilon", c.Epsilon},
	} {
		if !(f.value >= 0) || math.IsInf(f.value, 0) {
			faults = append(faults, fmt.Errorf("%s: want a finite number that is not negative, got \"%v\"", f.name, f.value))
		}
	}
	return errors.Join(faults...)
}

// Prefill estimates how long an idle engine computes u prompt tokens that attend to c cached ones:
//
//	P(u, c) = a*u + b*u*(c + u/2) + d
//
// Negative counts are taken as 0. The result is rounded to the nanosecond and saturates at the longest Duration.
func (c CostModelConfig) Prefill(u, cached int) time.Duration {
	uf, cf := float64(max(u, 0)), float64(max(cached, 0))
	return seconds(c.PrefillToken*uf + c.PrefillPair*uf*(cf+uf/2) + c.PrefillFixed)
}

// seconds converts a number of seconds that is not negative.
func seconds(s float64) time.Duration {
	ns := math.Round(s * float64(time.Second))
	if !(ns < math.MaxInt64) {
		return math.MaxInt64
	}
	return time.Duration(ns)
}
