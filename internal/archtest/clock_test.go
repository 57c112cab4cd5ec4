package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// clockCalls read the wall clock, wait on it, or promise to, by the import path of their package.
var clockCalls = map[string]map[string]bool{
	"time": {
		"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true, "Tick": true,
		"NewTimer": true, "NewTicker": true,
	},
	"context": {"WithTimeout": true, "WithTimeoutCause": true, "WithDeadline": true, "WithDeadlineCause": true},
}

// clockExceptions are the calls that clockless rooms may have, by file and name, each with its reason.
var clockExceptions = map[string]string{
	"tokenize/pool.go time.NewTimer": "the pool bounds how long a caller waits for a worker; the timer does not shape any result",
}

// readsClock returns the names of a file's clock calls, as "time.Now", at their positions. Passing a function on counts as a call.
func readsClock(fset *token.FileSet, file *ast.File) map[token.Position]string {
	names := map[string]string{} // as the file calls the package: its import path
	found := map[token.Position]string{}
	for _, spec := range file.Imports {
		imported := strings.Trim(spec.Path.Value, `"`)
		if clockCalls[imported] == nil {
			continue
		}
		name := path.Base(imported)
		if spec.Name != nil {
			name = spec.Name.Name
		}
		if name == "." {
			found[fset.Position(spec.Pos())] = "import . of " + imported
		}
		names[name] = imported
	}
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok {
			if imported := names[x.Name]; clockCalls[imported][sel.Sel.Name] {
				found[fset.Position(sel.Pos())] = imported + "." + sel.Sel.Name
			}
		}
		return true
	})
	return found
}

func TestTimeIsAParameter(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, p := range listed(t) {
		folder, _ := ours(p.ImportPath)
		r := roomOf(folder)
		if r == nil || !r.clockless {
			continue
		}
		for _, name := range sources(p) {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Error(err)
				continue
			}
			for at, call := range readsClock(fset, file) {
				key := path.Join(folder, filepath.Base(name)) + " " + call
				used[key] = true
				if clockExceptions[key] == "" {
					t.Errorf("%s/%s:%d: %s: time is a parameter here: %s", folder, filepath.Base(name), at.Line, call, r.why)
				}
			}
		}
	}
	for key := range clockExceptions {
		if !used[key] {
			t.Errorf("exception %q is not needed any more", key)
		}
	}
}

func TestClockCallsAreFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, imports, body string
		want                string
	}{
		{"a call", `import "time"`, `_ = time.Now()`, "time.Now"},
		{"under another name", `import clock "time"`, `_ = clock.Since(clock.Time{})`, "time.Since"},
		{"as a value", `import "time"`, `f := time.Now; _ = f`, "time.Now"},
		{"a wait", `import "time"`, `time.Sleep(1)`, "time.Sleep"},
		{"a deadline", `import "context"`, `context.WithTimeout(nil, 1)`, "context.WithTimeout"},
		{"without a name", `import . "time"`, `_ = Now()`, "import . of time"},
		{"durations and moments only", `import "time"`, `_ = time.Time{}.Add(time.Second)`, ""},
		{"another package of that name", `import "example.org/time"`, `_ = time.Now()`, ""},
	} {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, "x.go", fmt.Sprintf("package x\n%s\nfunc f() { %s }\n", tc.imports, tc.body), 0)
		if err != nil {
			t.Fatal(err)
		}
		found := readsClock(fset, file)
		if tc.want == "" && len(found) == 0 {
			continue
		}
		if len(found) != 1 {
			t.Errorf("%s: found %v, want %q", tc.name, found, tc.want)
		}
		for _, got := range found {
			if got != tc.want {
				t.Errorf("%s: found %q, want %q", tc.name, got, tc.want)
			}
		}
	}
}
