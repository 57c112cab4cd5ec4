package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// A command is one subcommand of bench.
type command struct {
	name    string
	summary string // one line for the list of commands
	run     func(ctx context.Context, args []string, std stdio) error
}

// stdio is where a command writes: results to out, progress and diagnostics to err.
type stdio struct {
	out, err io.Writer
}

// errUsage marks a fault of the command line, which exits with status 2 and not 1. The message has been printed.
var errUsage = errors.New("usage")

func commands() []command {
	return []command{
		{"demo", "replay 60 chats and 200 rows of a trace under several policies and print a table", runDemo},
	}
}

func main() {
	// The first signal ends the run in order, with the child process; a second one ends this process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	os.Exit(dispatch(ctx, os.Args[1:], stdio{os.Stdout, os.Stderr}))
}

// dispatch runs the subcommand that args name and returns the exit status: 0 for success, 1 for a run that failed or in
// which a request failed, 2 for a fault of the command line.
func dispatch(ctx context.Context, args []string, std stdio) int {
	if len(args) == 0 {
		usage(std.err)
		return 2
	}
	if args[0] == "help" || args[0] == "-h" || args[0] == "--help" {
		if len(args) < 2 {
			usage(std.out)
			return 0
		}
		args = []string{args[1], "-h"}
	}
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], std)
		switch {
		case err == nil, errors.Is(err, flag.ErrHelp):
			return 0
		case errors.Is(err, errUsage):
			return 2
		}
		fmt.Fprintf(std.err, "bench %s: %v\n", c.name, err)
		return 1
	}
	fmt.Fprintf(std.err, "bench: unknown command %q\n\n", args[0])
	usage(std.err)
	return 2
}

func usage(w io.Writer) {
	fmt.Fprint(w, "Usage: bench COMMAND [flags]\n\nCommands:\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, "\nRun bench help COMMAND for its flags.\n")
}

// parseFlags parses a command's arguments, which are flags only. The help text goes to out when it was asked for and to
// err after a mistake.
func parseFlags(fs *flag.FlagSet, args []string, std stdio, about string) error {
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	if err == nil && fs.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err == nil {
		return nil
	}
	w := std.out
	if !errors.Is(err, flag.ErrHelp) {
		w = std.err
		fmt.Fprintf(w, "bench %s: %v\n\n", fs.Name(), err)
	}
	fmt.Fprintf(w, "Usage: bench %s [flags]\n\n%s\n\nFlags:\n", fs.Name(), about)
	fs.SetOutput(w)
	fs.PrintDefaults()
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	return errUsage
}
