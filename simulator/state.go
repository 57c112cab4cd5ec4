package simulator

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/zeebo/xxh3"

	"github.com/inferrail/inferrail/simulator/engine"
)

// engines holds the simulated engines of the process. They live as long as a loaded configuration or a running request
// refers to them, so that a reload keeps the cache and running requests finish. It is the package's only variable state
// and takes no other lock while its own is held.
var engines = caddy.NewUsagePool()

// pooled is a driver as an entry of the pool. It starts no goroutine before the first request.
type pooled struct {
	driver *driver
	stats  *stats
}

// Destruct ends the engine after the last reference is gone.
func (p *pooled) Destruct() error {
	p.driver.close()
	return nil
}

func (s *Simulator) acquire() (*pooled, error) {
	v, _, err := engines.LoadOrNew(s.poolKey, func() (caddy.Destructor, error) {
		st := newStats(s.MaxModelLen, time.Now())
		d, err := newDriver(s.engineConfig(), st)
		if err != nil {
			return nil, err
		}
		return &pooled{d, st}, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*pooled), nil
}

func (s *Simulator) release() {
	_, _ = engines.Delete(s.poolKey) // Destruct gives no error
}

// key names the engine that a configuration describes: equal keys share one. The tokenizer counts by what it does, as
// loading it clears its settings.
func (s *Simulator) key() (string, error) {
	cfg := *s
	cfg.EnablePromptTokensDetails = false // concerns answers, not the engine
	b, err := json.Marshal(&cfg)
	if err != nil {
		return "", fmt.Errorf("naming the engine: %w", err)
	}
	return s.tokenizer.Fingerprint() + " " + string(b), nil
}

// fingerprint is the system_fingerprint of answers: vLLM's form, from the settings instead of its compiled graph.
func (s *Simulator) fingerprint() string {
	cfg := *s
	cfg.Instance = ""
	b, err := json.Marshal(&cfg)
	if err != nil {
		b = []byte(s.Model)
	}
	return fmt.Sprintf("vllm-%s-%08x", vllmVersion, uint32(xxh3.Hash(b)))
}

func (s *Simulator) engineConfig() engine.Config {
	cfg := engine.Config{
		BlockSize: s.BlockSize, NumGPUBlocks: s.NumGPUBlocksOverride, MaxNumSeqs: s.MaxNumSeqs,
		MaxNumBatchedTokens: s.MaxNumBatchedTokens, MaxModelLen: s.MaxModelLen,
		EnablePrefixCaching: s.prefixCaching(), PriorityScheduling: s.SchedulingPolicy == "priority",
	}
	if !s.ZeroLatency {
		cfg.Latency = engine.Latency{
			PrefillToken: micros(*s.PrefillTokenUS), PrefillPair: *s.PrefillPairNS,
			PrefillFixed: millis(*s.PrefillFixedMS), DecodeToken: millis(*s.DecodeTokenMS),
			DecodeSeq: micros(*s.DecodeSeqUS),
		}
	}
	return cfg
}

func micros(x float64) time.Duration { return time.Duration(x * float64(time.Microsecond)) }
func millis(x float64) time.Duration { return time.Duration(x * float64(time.Millisecond)) }

// listenInstance names an engine by the addresses of the server that its handler belongs to.
func listenInstance(listen []string) string { return strings.Join(listen, ",") }
