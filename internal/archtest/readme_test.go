package archtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

var (
	readmeTests = regexp.MustCompile("(?m)^Run the tests:\n+```[a-z]*\n((?:.+\n)+?)```$")
	ciTests     = regexp.MustCompile(`(?m)^test_command='([^']*)'`)
)

func TestCIRunsWhatTheREADMETellsAReaderToRun(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("no README.md")
	} else if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join(root, ".ci", "run"))
	if err != nil {
		t.Fatal(err)
	}
	told, runs := readmeTests.FindSubmatch(readme), ciTests.FindSubmatch(script)
	if told == nil || runs == nil {
		t.Fatalf("test command in README.md: %q, in .ci/run: %q", told, runs)
	}
	if string(told[1]) != string(runs[1])+"\n" {
		t.Errorf("README.md tells to run %q, .ci/run runs %q", told[1], runs[1])
	}
}
