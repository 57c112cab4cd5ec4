package engine

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/inferrail/inferrail/index"
)

var rewrite = flag.Bool("rewrite", false, "write the output of the scripts in testdata/*.txt into them")

// TestScripts runs testdata/*.txt. A script is a list of commands, each followed by a line "----", what the
// command prints, and an empty line; lines that start with # are comments. Commands:
//
//	engine [size=4] [blocks=13] [seqs=4] [budget=16] [len=40] [priority] [uncached]
//	        starts anew; a prefill costs 1ms a token and 10ms more, a decode step 20ms and 1ms for each further sequence
//	add ID prompt=A8,B3 [max=1] [stop=N] [at=5ms] [prio=N] [salt=S] [skip]
//	        a prompt is made of pieces: 8 tokens of text A, then 3 of text B; @1x5 are the first 5 that request 1 generates
//	step [now]   plans and completes one step
//	plan [now]   plans it only
//	done         completes it
//	run          steps until there is no work
//	abort ID…    withdraws requests
//	reset        resets the prefix cache
//	stats        prints the gauges
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, text)
			if bytes.Equal(got, text) {
				return
			}
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("output differs (refresh with -rewrite); got:\n%s", got)
		})
	}
}

// runScript returns the script with the output that its commands give.
func runScript(t *testing.T, text []byte) []byte {
	var out bytes.Buffer
	s := &script{t: t}
	skip := false // the recorded output of the last command
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case skip:
			skip = line != ""
		case line == "" || line[0] == '#':
			fmt.Fprintln(&out, line)
		case line == "----":
			skip = true
		default:
			fmt.Fprintf(&out, "%s\n----\n%s\n", line, s.command(strings.Fields(line)))
		}
	}
	return out.Bytes()
}

type script struct {
	t     *testing.T
	e     *Engine
	names map[index.Hash]int // of blocks, in order of appearance
}

// command returns the lines that a command prints.
func (s *script) command(words []string) string {
	args := map[string]string{}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		args[key] = value
	}
	var out strings.Builder
	switch words[0] {
	case "engine":
		s.engine(args)
	case "add":
		if err := s.e.Add(s.request(words[1], args)); err != nil {
			fmt.Fprintln(&out, err)
		}
	case "plan", "step":
		var now time.Duration
		if len(words) > 1 {
			now = s.duration(words[1])
		}
		end, ok := s.e.Schedule(now)
		switch {
		case !ok:
			fmt.Fprintln(&out, "no work")
		case words[0] == "plan":
			fmt.Fprintf(&out, "until %v\n", end)
		default:
			s.print(&out, s.e.Complete())
		}
	case "done":
		s.print(&out, s.e.Complete())
	case "run":
		for {
			if _, ok := s.e.Schedule(0); !ok {
				break
			}
			s.print(&out, s.e.Complete())
		}
	case "abort":
		for _, id := range words[1:] {
			fmt.Fprintf(&out, "%s: %v\n", id, s.e.Abort(uint64(s.number(id))))
		}
	case "reset":
		fmt.Fprintln(&out, s.e.ResetPrefixCache())
	case "stats":
		g := s.e.Stats()
		fmt.Fprintf(&out, "running %d, waiting %d, used %d, usage %.3f, cached %d\n", g.Running, g.Waiting, g.UsedBlocks, g.Usage, g.CachedBlocks)
	default:
		s.t.Fatalf("unknown command %q", words[0])
	}
	if s.e != nil {
		checkInvariants(s.t, s.e)
	}
	return out.String()
}

func (s *script) engine(args map[string]string) {
	size := func(key string, otherwise int) int {
		if v, ok := args[key]; ok {
			return s.number(v)
		}
		return otherwise
	}
	_, priority := args["priority"]
	_, uncached := args["uncached"]
	s.names = map[index.Hash]int{}
	s.e = mustNew(s.t, Config{
		BlockSize: size("size", 4), NumGPUBlocks: size("blocks", 13), MaxNumSeqs: size("seqs", 4),
		MaxNumBatchedTokens: size("budget", 16), MaxModelLen: size("len", 40),
		EnablePrefixCaching: !uncached, PriorityScheduling: priority, KVEvents: true,
		Latency: Latency{
			PrefillToken: time.Millisecond, PrefillFixed: 10 * time.Millisecond,
			DecodeToken: 20 * time.Millisecond, DecodeSeq: time.Millisecond,
		},
	})
}

func (s *script) request(id string, args map[string]string) Request {
	r := Request{ID: uint64(s.number(id)), MaxTokens: 1, Root: index.Root("m", "", args["salt"], s.e.cfg.BlockSize)}
	r.Next = func(i int) uint32 { return scriptToken(uint32(r.ID), i) }
	for key, value := range args {
		switch key {
		case "max":
			r.MaxTokens = s.number(value)
		case "stop":
			r.StopAfter = s.number(value)
		case "prio":
			r.Priority = s.number(value)
		case "at":
			r.Arrival = s.duration(value)
		case "skip":
			r.SkipCache = true
		case "prompt":
			r.Prompt = s.prompt(value)
		case id, "salt":
		default:
			s.t.Fatalf("unknown argument %q", key)
		}
	}
	return r
}

func (s *script) prompt(text string) []uint32 {
	var tokens []uint32
	for piece := range strings.SplitSeq(text, ",") {
		source, n := uint32(piece[0]), piece[1:]
		if piece[0] == '@' {
			id, count, _ := strings.Cut(n, "x")
			source, n = uint32(s.number(id)), count
		} else {
			source += 1 << 10 // apart from request ids
		}
		for i := range s.number(n) {
			tokens = append(tokens, scriptToken(source, i))
		}
	}
	return tokens
}

func scriptToken(source uint32, i int) uint32 { return source<<16 | uint32(i) }

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// print writes a step: its times and tokens, then what it did.
func (s *script) print(out *strings.Builder, r StepResult) {
	fmt.Fprintf(out, "%v to %v: %d tokens", r.Start, r.End, r.Scheduled)
	if r.CacheQueries > 0 {
		fmt.Fprintf(out, ", %d of %d hit", r.CacheHits, r.CacheQueries)
	}
	if len(r.Preempted) > 0 {
		fmt.Fprintf(out, ", preempted %v", r.Preempted)
	}
	out.WriteByte('\n')
	for _, o := range r.Outputs {
		fmt.Fprintf(out, "  request %d: token %d", o.ID, o.Index)
		if o.First {
			fmt.Fprintf(out, ", %d cached, %d created, scheduled at %v", o.Cached, o.Created, o.Times.Scheduled)
		}
		if o.Finish != "" {
			fmt.Fprintf(out, ", %s, preempted %d times", o.Finish, o.Preempts)
		}
		out.WriteByte('\n')
	}
	for _, ev := range r.Events {
		fmt.Fprintf(out, "  %s\n", s.event(ev))
	}
}

// event writes an event as stored(h0 h1 after none), removed(h0) or cleared.
func (s *script) event(ev Event) string {
	var hashes []string
	for _, h := range ev.Hashes {
		hashes = append(hashes, s.name(h))
	}
	switch ev.Kind {
	case AllBlocksCleared:
		return "cleared"
	case BlockRemoved:
		return "removed(" + hashes[0] + ")"
	}
	parent := "none"
	if ev.HasParent {
		parent = s.name(ev.Parent)
	}
	return fmt.Sprintf("stored(%s after %s) by %d", strings.Join(hashes, " "), parent, ev.RequestID)
}

func (s *script) name(h index.Hash) string {
	n, ok := s.names[h]
	if !ok {
		n = len(s.names)
		s.names[h] = n
	}
	return "h" + strconv.Itoa(n)
}
