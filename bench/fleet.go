package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"text/template"
)

const (
	// modelName is the model that the simulated engines serve.
	modelName = "inferrail/sim-8b"
	// blockSize is the engines' and the router's KV block, in tokens.
	blockSize = 16
	// replicas is the number of engines of the demo's fleet.
	replicas = 3
)

// engineSettings are what the simulated engines of one workload are given; the latency model stays at its defaults, an
// 8B model on one 24 GB GPU.
type engineSettings struct {
	Blocks      int `json:"num_gpu_blocks"` // KV blocks of blockSize tokens per engine
	MaxModelLen int `json:"max_model_len"`  // tokens of prompt and answer
}

// chatEngine has room for 16,384 tokens: less than the 60 chats need together, so that engines evict.
func chatEngine() engineSettings { return engineSettings{Blocks: 1024, MaxModelLen: 8192} }

// traceEngine has room for 65,536 tokens, a fifth of the excerpt's, and a context that all but a few rows fit.
func traceEngine() engineSettings { return engineSettings{Blocks: 4096, MaxModelLen: 8192} }

// A fleetConfig is one router and its engines in one process.
type fleetConfig struct {
	Policy   string
	ModelDir string // of Qwen3's tokenizer, for the router and the engines
	Engine   engineSettings
	Admin    string   // host:port of Caddy's admin API
	Router   string   // host:port
	Engines  []string // host:port each
}

var caddyfileTemplate = template.Must(template.New("Caddyfile").Funcs(template.FuncMap{
	"quote": quoteCaddyfile,
	"join":  strings.Join,
}).Parse(`{
	admin {{.Admin}}
	persist_config off
	auto_https off
	grace_period 1s
	log {
		level WARN
	}
	inferrail {
		model {{.Model}} {
			tokenizer huggingface {{quote .ModelDir}}
			block_size {{.BlockSize}}
		}
	}
}

http://{{.Router}} {
	inferrail {{join .Engines " "}} {
		policy {{.Policy}}
	}
}
{{range $address := .Engines}}
http://{{$address}} {
	vllm_simulator {{$.Model}} {
		enable_prompt_tokens_details
		tokenizer huggingface {{quote $.ModelDir}}
		block_size {{$.BlockSize}}
		num_gpu_blocks_override {{$.Engine.Blocks}}
		max_model_len {{$.Engine.MaxModelLen}}
	}
}
{{end}}`))

// caddyfile renders the child process's configuration.
func (c *fleetConfig) caddyfile() (string, error) {
	var b strings.Builder
	err := caddyfileTemplate.Execute(&b, struct {
		*fleetConfig
		Model     string
		BlockSize int
	}{c, modelName, blockSize})
	if err != nil {
		return "", fmt.Errorf("writing Caddyfile: %w", err)
	}
	return b.String(), nil
}

// quoteCaddyfile makes one Caddyfile token of s. Inside quotes a backslash escapes only a quote, and braces could be
// taken for a placeholder, which a path with them deserves.
func quoteCaddyfile(s string) string {
	return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
}

// newFleetConfig picks free loopback ports. They are free at this moment only: a process that fails to bind one is
// started again with others.
func newFleetConfig(policy, modelDir string, engine engineSettings) (*fleetConfig, error) {
	addresses, err := freeAddresses(2 + replicas)
	if err != nil {
		return nil, err
	}
	return &fleetConfig{
		Policy: policy, ModelDir: modelDir, Engine: engine,
		Admin: addresses[0], Router: addresses[1], Engines: addresses[2:],
	}, nil
}

// freeAddresses returns n different loopback addresses on which nothing listens. All are held open until the last is
// found, so that none is given twice.
func freeAddresses(n int) ([]string, error) {
	var addresses []string
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close() // nothing was sent through it
		}
	}()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("finding a free port: %w", err)
		}
		held = append(held, l)
		port := l.Addr().(*net.TCPAddr).Port
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	return addresses, nil
}
