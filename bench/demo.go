package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const demoAbout = `Replays the same requests over one router and three simulated engines under each policy, and prints for each
workload the engines' hit rate, time to first token, requests per replica and how exact the predictions were.

  chats     60 multi-turn chats, tokenized with Qwen3's template and vocabulary; assistant turns are the engines' answers
  mooncake  the first 200 rows of the Mooncake conversation trace, lengths divided by eight, as token-id prompts

Router and engines are one child process, started afresh for each workload and policy: about a minute each.
The exit status is 1 if any request failed.`

// demoOptions are the demo's flags.
type demoOptions struct {
	policies       []string
	workloads      []string
	jsonFile       string
	binary         string
	modelDir       string
	speed          float64
	limit          int
	requestTimeout time.Duration
	runTimeout     time.Duration
}

func parseDemo(args []string, std stdio) (*demoOptions, error) {
	var o demoOptions
	var policies, workloads string
	fs := flag.NewFlagSet("demo", flag.ContinueOnError)
	fs.StringVar(&policies, "policies", "round_robin,least_request,cost_model", "comma-separated `list` of routing policies")
	fs.StringVar(&workloads, "workloads", "chats,mooncake", "comma-separated `list` of workloads")
	fs.StringVar(&o.jsonFile, "json", "", "write summaries and every request's measurements to this `file`")
	fs.StringVar(&o.binary, "binary", "", "router binary to run; default: built from ./xcaddy")
	fs.StringVar(&o.modelDir, "model-dir", "", "`directory` of Qwen3's tokenizer; default: tokenize/testdata/qwen3 of the repository")
	fs.Float64Var(&o.speed, "speed", 1.3, "pace of the trace, as a multiple of its own")
	fs.IntVar(&o.limit, "limit", 0, "replay only the first `n` chats and rows; 0 for all")
	fs.DurationVar(&o.requestTimeout, "request-timeout", 2*time.Minute, "deadline of one request")
	fs.DurationVar(&o.runTimeout, "run-timeout", 5*time.Minute, "deadline of one policy over one workload")
	if err := parseFlags(fs, args, std, demoAbout); err != nil {
		return nil, err
	}
	o.policies, o.workloads = splitList(policies), splitList(workloads)
	err := o.validate()
	if err != nil {
		fmt.Fprintf(std.err, "bench demo: %v\n", err)
		return nil, errUsage
	}
	return &o, nil
}

func (o *demoOptions) validate() error {
	if len(o.policies) == 0 || len(o.workloads) == 0 {
		return fmt.Errorf("at least one policy and one workload are needed")
	}
	for _, p := range o.policies {
		// The name goes into a Caddyfile.
		if strings.Trim(p, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			return fmt.Errorf("%q is no name of a policy", p)
		}
	}
	for _, w := range o.workloads {
		if w != "chats" && w != "mooncake" {
			return fmt.Errorf("unknown workload %q: chats or mooncake", w)
		}
	}
	if !(o.speed > 0) || math.IsInf(o.speed, 0) {
		return fmt.Errorf("speed %g is not positive", o.speed)
	}
	if o.limit < 0 || o.requestTimeout <= 0 || o.runTimeout <= 0 {
		return fmt.Errorf("limit and timeouts must not be negative")
	}
	return nil
}

// splitList splits at commas and drops empty and repeated parts.
func splitList(s string) []string {
	var list []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" && !slices.Contains(list, part) {
			list = append(list, part)
		}
	}
	return list
}

// A demoResult is what -json writes.
type demoResult struct {
	Started   time.Time      `json:"started"`
	Speed     float64        `json:"trace_speed"`
	Workloads []demoWorkload `json:"workloads"`
}

type demoWorkload struct {
	Name   string         `json:"name"`
	About  string         `json:"about"`
	Engine engineSettings `json:"engine"`
	Runs   []*summary     `json:"runs"`
}

func runDemo(ctx context.Context, args []string, std stdio) (err error) {
	o, err := parseDemo(args, std)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "inferrail-bench-")
	if err != nil {
		return fmt.Errorf("making a working directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is the system's to clean
	if err := o.prepare(ctx, dir, std.err); err != nil {
		return err
	}
	result := demoResult{Started: time.Now(), Speed: o.speed}
	failed := 0
	for _, name := range o.workloads {
		w, err := o.workload(name)
		if err != nil {
			return err
		}
		runs := demoWorkload{Name: w.Name, About: w.About, Engine: w.Engine}
		for _, policy := range o.policies {
			s, err := o.runPolicy(ctx, w, policy, dir, std.err)
			if err != nil {
				return fmt.Errorf("running %s under %s: %w", w.Name, policy, err)
			}
			failed += s.Errors + s.Skipped
			runs.Runs = append(runs.Runs, s)
		}
		report(std.out, w, runs.Runs)
		result.Workloads = append(result.Workloads, runs)
	}
	fmt.Fprint(std.out, legend)
	if err := o.writeJSON(&result); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d requests failed or were not sent", failed)
	}
	return nil
}

// prepare finds the tokenizer and the router binary, which it builds if none was given.
func (o *demoOptions) prepare(ctx context.Context, dir string, progress io.Writer) error {
	root := ""
	if o.modelDir == "" || o.binary == "" {
		wd, err := os.Getwd()
		if err != nil {
			return fmt.Errorf("finding the repository: %w", err)
		}
		if root, err = moduleRoot(wd); err != nil {
			return err
		}
	}
	if o.modelDir == "" {
		o.modelDir = filepath.Join(root, "tokenize", "testdata", "qwen3")
	}
	var err error
	if o.modelDir, err = filepath.Abs(o.modelDir); err != nil {
		return fmt.Errorf("finding the tokenizer: %w", err)
	}
	if o.binary == "" {
		fmt.Fprintln(progress, "building the router from ./xcaddy")
		if o.binary, err = buildRouter(ctx, root, dir); err != nil {
			return err
		}
	}
	return nil
}

func (o *demoOptions) workload(name string) (*workload, error) {
	if name == "chats" {
		return chatWorkload(defaultChatPlan(modelName), o.limit)
	}
	return traceWorkload(modelName, o.speed, o.limit)
}

// runPolicy replays a workload over a fresh fleet.
func (o *demoOptions) runPolicy(ctx context.Context, w *workload, policy, dir string, out io.Writer) (*summary, error) {
	ctx, cancel := context.WithTimeout(ctx, o.runTimeout)
	defer cancel()
	fleet, err := startFleet(ctx, o.binary, dir, policy, o.modelDir, w.Engine)
	if err != nil {
		return nil, err
	}
	defer fleet.stop()
	before, err := readCounters(ctx, fleet.cfg.Engines)
	if err != nil {
		return nil, err
	}
	c := newClient("http://"+fleet.cfg.Router, o.requestTimeout)
	defer c.close()
	p := &progress{w: out, label: w.Name + " " + policy, total: w.Requests}
	stopReport := p.report(5 * time.Second)
	samples, skipped := drive(ctx, c, w, p)
	stopReport()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("cut off after %d of %d requests: %w", len(samples), w.Requests, ctx.Err())
	}
	if err := fleet.alive(); err != nil {
		return nil, err
	}
	after, err := readCounters(ctx, fleet.cfg.Engines)
	if err != nil {
		return nil, err
	}
	delta := cacheCounters{Queries: after.Queries - before.Queries, Hits: after.Hits - before.Hits}
	s := summarize(w, policy, fleet.cfg.Engines, samples, skipped, delta)
	s.printErrors(out)
	return s, nil
}

// printErrors shows the first failed requests of a run.
func (s *summary) printErrors(out io.Writer) {
	const shown = 5
	n := 0
	for _, r := range s.Samples {
		if r.Error == "" {
			continue
		}
		if n++; n <= shown {
			fmt.Fprintf(out, "%s %s: session %s turn %d: %s\n", s.Workload, s.Policy, r.Session, r.Turn+1, r.Error)
		}
	}
	if n > shown {
		fmt.Fprintf(out, "%s %s: and %d more\n", s.Workload, s.Policy, n-shown)
	}
}

func (o *demoOptions) writeJSON(result *demoResult) error {
	if o.jsonFile == "" {
		return nil
	}
	data, err := json.MarshalIndent(result, "", " ")
	if err != nil {
		return fmt.Errorf("encoding results: %w", err)
	}
	if err := os.WriteFile(o.jsonFile, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("writing results: %w", err)
	}
	return nil
}
