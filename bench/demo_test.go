package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// bench runs the command line in this process.
func bench(t *testing.T, args ...string) (status int, out, diagnostics string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status = dispatch(t.Context(), args, stdio{&stdout, &stderr})
	return status, stdout.String(), stderr.String()
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args     string
		status   int
		out, err string // parts of what is printed
	}{
		{"", 2, "", "Commands:"},
		{"help", 0, "Commands:", ""},
		{"help demo", 0, "Mooncake", ""},
		{"demo -h", 0, "-policies", ""},
		{"walk", 2, "", `unknown command "walk"`},
		{"demo -x", 2, "", "not defined: -x"},
		{"demo chats", 2, "", `unexpected argument "chats"`},
		{"demo -workloads books", 2, "", `unknown workload "books"`},
		{"demo -policies=a;b", 2, "", `"a;b" is no name`},
		{"demo -policies ,", 2, "", "at least one policy"},
		{"demo -speed 0", 2, "", "not positive"},
		{"demo -limit -1", 2, "", "must not be negative"},
	} {
		status, out, diagnostics := bench(t, strings.Fields(tc.args)...)
		if status != tc.status || !strings.Contains(out, tc.out) || !strings.Contains(diagnostics, tc.err) {
			t.Errorf("bench %s: status %d\n%s\n%s", tc.args, status, out, diagnostics)
		}
	}
}

func TestDemoOverAFakeRouter(t *testing.T) {
	t.Setenv(fakeChildEnv, "serve")
	file := filepath.Join(t.TempDir(), "out.json")
	status, out, diagnostics := bench(t, "demo", "-binary", executable(t), "-model-dir", t.TempDir(), "-limit", "4",
		"-speed", "1000", "-workloads", "mooncake", "-policies", "right,wrong", "-json", file)
	if status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, out, diagnostics)
	}
	for _, want := range []string{
		`right +4 +0 +0 +25.0% +\d+ +\d+ +1/2/1 +100.0% +0.0% +0.0% +0.0% +\d`,
		`wrong +4 +0 +0 +25.0% +\d+ +\d+ +1/2/1 +0.0% +0.0% +100.0% +0.0% +\d`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no line like %q in\n%s", want, out)
		}
	}
	if !strings.Contains(diagnostics, "mooncake wrong:") || !strings.Contains(diagnostics, "4 of 4 answered, 0 in flight, 0 errors") {
		t.Errorf("progress:\n%s", diagnostics)
	}
	var result demoResult
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &result); err != nil {
		t.Fatal(err)
	}
	if n := len(result.Workloads[0].Runs[1].Samples); n != 4 {
		t.Errorf("%d samples in the file, want 4", n)
	}
}

func TestDemoFailsWhenARequestDoes(t *testing.T) {
	t.Setenv(fakeChildEnv, "serve")
	status, out, diagnostics := bench(t, "demo", "-binary", executable(t), "-model-dir", t.TempDir(), "-limit", "4",
		"-speed", "1000", "-workloads", "mooncake", "-policies", "failing")
	if status != 1 || !strings.Contains(diagnostics, "2 requests failed") || !strings.Contains(diagnostics, "status 503") {
		t.Errorf("status %d\n%s\n%s", status, out, diagnostics)
	}
}

func TestDemoReportsARouterThatDoesNotStart(t *testing.T) {
	t.Setenv(fakeChildEnv, "exit")
	status, _, diagnostics := bench(t, "demo", "-binary", executable(t), "-model-dir", t.TempDir(), "-policies", "none")
	if status != 1 || !strings.Contains(diagnostics, "exit status 1") || !strings.Contains(diagnostics, "no policy of that name") {
		t.Errorf("status %d\n%s", status, diagnostics)
	}
}

func TestInterruptEndsTheChild(t *testing.T) {
	t.Setenv(fakeChildEnv, "serve")
	fleet, err := startFleet(t.Context(), executable(t), t.TempDir(), "p", "/models/a b", traceEngine())
	if err != nil {
		t.Fatal(err)
	}
	if err := fleet.alive(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := newClient("http://"+fleet.cfg.Router, time.Minute)
	defer c.close()
	samples, _ := drive(ctx, c, &workload{Sessions: []session{{Turns: []turn{fixed(0)}}}}, nil)
	if len(samples) != 0 {
		t.Errorf("%d requests were sent after the end", len(samples))
	}
	fleet.stop()
	if fleet.cmd.ProcessState == nil {
		t.Error("the process was not waited for")
	}
	if fleet.alive() == nil {
		t.Error("the process is still there")
	}
	fleet.stop()
}

func TestWaitReadyGivesUpWithItsContext(t *testing.T) {
	t.Setenv(fakeChildEnv, "serve")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := startFleet(ctx, executable(t), t.TempDir(), "p", "/m", traceEngine())
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func executable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

func TestCaddyfile(t *testing.T) {
	t.Parallel()
	cfg := fleetConfig{
		Policy: "cost_model", ModelDir: `/m/a "b"`, Engine: engineSettings{Blocks: 7, MaxModelLen: 9},
		Admin: "127.0.0.1:1", Router: "127.0.0.1:2", Engines: []string{"127.0.0.1:3", "127.0.0.1:4"},
	}
	got, err := cfg.caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\tadmin 127.0.0.1:1\n",
		"\t\t\ttokenizer huggingface \"/m/a \\\"b\\\"\"\n",
		"http://127.0.0.1:2 {\n\tinferrail 127.0.0.1:3 127.0.0.1:4 {\n\t\tpolicy cost_model\n\t}\n}\n",
		"http://127.0.0.1:4 {\n\tvllm_simulator inferrail/sim-8b {\n\t\tenable_prompt_tokens_details\n",
		"\t\tnum_gpu_blocks_override 7\n\t\tmax_model_len 9\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestFreeAddressesAreDifferent(t *testing.T) {
	t.Parallel()
	got, err := freeAddresses(20)
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	if n := len(slices.Compact(got)); n != 20 {
		t.Errorf("%d different addresses, want 20", n)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	t.Parallel()
	w := &tail{limit: 5}
	for _, s := range []string{"ab", "cde", "f", "", "0123456789", "x"} {
		if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
			t.Fatalf("writing %q: %d, %v", s, n, err)
		}
	}
	if got := w.String(); got != "6789x" {
		t.Errorf("kept %q, want 6789x", got)
	}
}

// TestDemoOverTheRealRouter builds the router and replays a few requests of both workloads.
func TestDemoOverTheRealRouter(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the router")
	}
	file := filepath.Join(t.TempDir(), "out.json")
	status, out, diagnostics := bench(t, "demo", "-limit", "4", "-speed", "4", "-policies", "cost_model,round_robin", "-json", file)
	if status != 0 {
		t.Fatalf("status %d\n%s\n%s", status, out, diagnostics)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var result demoResult
	if err := json.Unmarshal(data, &result); err != nil {
		t.Fatal(err)
	}
	for _, w := range result.Workloads {
		for _, s := range w.Runs {
			// Requests that arrive together may reach an engine in another order than they were routed, so that not every
			// prediction must be exact; but a prompt's length never depends on timing.
			if s.Requests == 0 || s.Exact == 0 || s.LengthOff != 0 {
				t.Errorf("%s under %s: %d of %d predictions exact, %d lengths off", s.Workload, s.Policy, s.Exact, s.Requests, s.LengthOff)
			}
			cached := 0
			for _, r := range s.Samples {
				cached += r.CachedTokens
				if r.Policy != s.Policy {
					t.Errorf("session %s was routed by %q", r.Session, r.Policy)
				}
			}
			if float64(cached) != s.Engines.Hits {
				t.Errorf("%s under %s: the answers report %d cached tokens, the engines %g", s.Workload, s.Policy, cached, s.Engines.Hits)
			}
		}
	}
	if s := result.Workloads[0].Runs[0]; s.HitRate == 0 {
		t.Error("chats under cost_model found nothing in the caches")
	}
}
