package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	buildTimeout = 10 * time.Minute
	readyTimeout = 30 * time.Second
	stopTimeout  = 5 * time.Second // from the request to end to the kill
	startTries   = 3               // another process may take a port between its choice and its use
	logTail      = 16 << 10        // bytes of the child's log that are kept for an error message
)

// buildRouter compiles the router from the module at root into dir and returns the binary's path.
func buildRouter(ctx context.Context, root, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, buildTimeout)
	defer cancel()
	bin := filepath.Join(dir, "inferrail")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", bin, "./xcaddy")
	cmd.Dir = root
	cmd.WaitDelay = stopTimeout
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the router: %w\n%s", err, out)
	}
	return bin, nil
}

// moduleRoot is the directory of the go.mod above dir, which must be this module's.
func moduleRoot(dir string) (string, error) {
	for d := dir; ; d = filepath.Dir(d) {
		mod, err := os.ReadFile(filepath.Join(d, "go.mod"))
		if err == nil && strings.HasPrefix(string(mod), "module github.com/inferrail/inferrail\n") {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("finding the repository: no go.mod of inferrail above %q", dir)
		}
	}
}

// A child is the running process of one fleet.
type child struct {
	cfg  *fleetConfig
	cmd  *exec.Cmd
	log  *tail
	done chan struct{} // closed when the process has ended
}

// startFleet starts the binary with a cold fleet and waits until the router and all engines answer. dir is a directory
// for the process's files. The caller must call stop.
func startFleet(ctx context.Context, bin, dir, policy, modelDir string, engine engineSettings) (*child, error) {
	var last error
	for range startTries {
		cfg, err := newFleetConfig(policy, modelDir, engine)
		if err != nil {
			return nil, err
		}
		c, err := startChild(bin, dir, cfg)
		if err != nil {
			return nil, err
		}
		if err = c.waitReady(ctx); err == nil {
			return c, nil
		}
		c.stop()
		last = fmt.Errorf("starting the fleet: %w\n%s", err, c.log)
		if ctx.Err() != nil || !strings.Contains(c.log.String(), "address already in use") {
			break
		}
	}
	return nil, last
}

func startChild(bin, dir string, cfg *fleetConfig) (*child, error) {
	text, err := cfg.caddyfile()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("writing Caddyfile: %w", err)
	}
	c := &child{cfg: cfg, log: &tail{limit: logTail}, done: make(chan struct{})}
	c.cmd = exec.Command(bin, "run", "--config", file, "--adapter", "caddyfile")
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	// Caddy keeps its data under these; the user's own stay as they are.
	c.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir)
	c.cmd.WaitDelay = stopTimeout
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the router: %w", err)
	}
	go func() {
		_ = c.cmd.Wait() // how it ended is in ProcessState
		close(c.done)
	}()
	return c, nil
}

// waitReady polls the router's and the engines' /health until all answer 200.
func (c *child) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	waiting := append([]string{c.cfg.Router}, c.cfg.Engines...)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(waiting) > 0 {
		if healthy(ctx, waiting[0]) {
			waiting = waiting[1:]
			continue
		}
		select {
		case <-tick.C:
		case <-c.done:
			return fmt.Errorf("the process ended: %s", c.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", waiting[0], ctx.Err())
		}
	}
	return nil
}

func healthy(ctx context.Context, address string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/health", nil)
	if err != nil {
		return false
	}
	resp, err := loopback.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// loopback does the harness's own short requests: no proxy, and no connection kept to a process that is about to end.
var loopback = &http.Client{
	Transport: &http.Transport{DisableKeepAlives: true},
	Timeout:   5 * time.Second,
}

// alive returns an error that says how the process ended, if it has.
func (c *child) alive() error {
	select {
	case <-c.done:
		return fmt.Errorf("the router's process ended: %s\n%s", c.cmd.ProcessState, c.log)
	default:
		return nil
	}
}

// stop ends the process, gently at first, and returns when it has ended. It may be called more than once.
func (c *child) stop() {
	if c.cmd.Process.Signal(os.Interrupt) != nil {
		// Where interrupts cannot be sent, or where the process is gone.
		if err := c.cmd.Process.Kill(); errors.Is(err, os.ErrProcessDone) {
			<-c.done
			return
		}
	}
	select {
	case <-c.done:
	case <-time.After(stopTimeout):
		_ = c.cmd.Process.Kill() // fails only if the process has just ended
		<-c.done
	}
}

// tail is a writer that keeps the last limit bytes. It is safe for concurrent use.
type tail struct {
	limit int

	mu   sync.Mutex // guards kept
	kept []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p[max(0, len(p)-t.limit):]...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
