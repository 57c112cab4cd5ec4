package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// A pkg is what the go command says of a package, without its tests.
type pkg struct {
	ImportPath, Name, Dir             string
	GoFiles, CgoFiles, IgnoredGoFiles []string
	Imports                           []string
	Deps                              []string // all that it links, the standard library included
}

// packages lists the module once for all tests.
var packages = sync.OnceValues(func() ([]pkg, error) {
	if err := touchFolders(); err != nil {
		return nil, err
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,GoFiles,CgoFiles,IgnoredGoFiles,Imports,Deps", "./...")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing packages: %w\n%s", err, stderr.Bytes())
	}
	var list []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return list, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the list of packages: %w", err)
		}
		list = append(list, p)
	}
})

// touchFolders reads the listing of each folder that may hold a package. The go command reuses a test's result until something
// that the test itself has opened changes; what go list reads does not count, so a new package would go unnoticed.
func touchFolders() error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == root {
			return err
		}
		if name := entry.Name(); name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
			return filepath.SkipDir
		}
		return nil
	})
}

func listed(t *testing.T) []pkg {
	t.Helper()
	list, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 10 { // the rooms that there are; a list from another folder would prove nothing
		t.Fatalf("go list names %d packages", len(list))
	}
	return list
}

// brokenArrows returns one line for each import that the house forbids.
func brokenArrows(p pkg) []string {
	path, ok := ours(p.ImportPath)
	if !ok {
		return []string{fmt.Sprintf("%s is not in module %s", p.ImportPath, module)}
	}
	r := roomOf(path)
	if r == nil {
		return []string{fmt.Sprintf("%s has no room: give it a line in rooms_test.go", path)}
	}
	faults := brokenRoom(path, r, p.Imports)
	for _, ban := range bans {
		if !matchesAny(ban.rooms, path) {
			continue
		}
		for _, dep := range p.Deps {
			if matchesAny(ban.never, dep) {
				faults = append(faults, fmt.Sprintf("%s links %s: %s", path, dep, ban.why))
			}
		}
	}
	return faults
}

func brokenRoom(path string, r *room, imports []string) (faults []string) {
	for _, imported := range imports {
		folder, inside := ours(imported)
		switch {
		case inside && matchesAny(r.ours, folder):
		case !inside && (standard(imported) || matchesAny(r.libraries, imported)):
		default:
			faults = append(faults, fmt.Sprintf("%s imports %s: %s", path, imported, r.why))
		}
	}
	for _, needed := range r.must {
		if !slices.ContainsFunc(imports, func(i string) bool { f, ok := ours(i); return ok && f == needed }) {
			faults = append(faults, fmt.Sprintf("%s does not import %q: %s", path, needed, r.why))
		}
	}
	return faults
}

func TestArrowsPointOneWay(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		for _, fault := range brokenArrows(p) {
			t.Error(fault)
		}
	}
}

func TestForbiddenImportsAreFound(t *testing.T) {
	t.Parallel()
	const caddy = "github.com/caddyserver/caddy/v2"
	for _, tc := range []struct {
		from, imports string
		want          string // a piece of the fault; empty when the import is allowed
	}{
		{"index", "github.com/zeebo/xxh3", ""},
		{"index", "net/netip", ""},
		{"index", "net", "no I/O"},
		{"index", "golang.org/x/text/unicode/norm", "bottom of the house"},
		{"index", caddy, "bottom of the house"},
		{"index", module + "/policies", "bottom of the house"},
		{"index/kvevents", "github.com/go-zeromq/zmq4", ""},
		{"index/kvevents", "go.uber.org/zap", "kvevents"},
		{"tokenize", "golang.org/x/text/unicode/norm", ""},
		{"tokenize/internal/jinja", module + "/tokenize", ""},
		{"tokenize", caddy + "/modules/caddyhttp", "nothing but the request"},
		{"policies", module + "/index", ""},
		{"policies/policytest", module + "/policies", ""},
		{"policies", module + "/internal/fleet", "given"},
		{"internal/fleet", "github.com/prometheus/common/expfmt", ""},
		{"internal/fleet", "github.com/prometheus/client_golang/prometheus", "plain structs"},
		{"internal/fleet", "go.uber.org/zap", "plain structs"},
		{"internal/fleet", module + "/policies", "fleet counts"},
		{"internal/openai", module + "/index", "standard library alone"},
		{"simulator/engine", module + "/index", ""},
		{"simulator/engine", module + "/tokenize", "state machine"},
		{"simulator/engine", "net/http", "no I/O"},
		{"simulator/fleet", module + "/policies", ""},
		{"simulator/fleet", module + "/simulator", "virtual time"},
		{"simulator", caddy, ""},
		{"simulator", module + "/caddymodule", "must not know the router"},
		{"caddymodule", caddy, ""},
		{"caddymodule", module + "/simulator", "without the mock engine"},
		{"caddymodule", module + "/simulator/engine", "without the mock engine"},
		{"caddymodule", module + "/bench", "without the mock engine"},
		{"bench", module + "/simulator/fleet", ""},
		{"bench", module + "/simulator", "from outside"},
		{"bench", module + "/caddymodule", "from outside"},
		{"bench", caddy, "from outside"},
		{"simulator", module + "/xcaddy", "must not know"},
		{"newfolder", "fmt", "has no room"},
	} {
		p := pkg{ImportPath: module + "/" + tc.from, Imports: []string{tc.imports}, Deps: []string{tc.imports}}
		got := strings.Join(brokenArrows(p), "\n")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s imports %s: faults %q, want %q", tc.from, tc.imports, got, tc.want)
		}
	}
}

func TestForbiddenLinksAreFoundAtAnyDepth(t *testing.T) {
	t.Parallel()
	p := pkg{
		ImportPath: module + "/policies",
		Imports:    []string{module + "/index"},
		Deps:       []string{"fmt", module + "/index", "github.com/caddyserver/certmagic"},
	}
	if got := brokenArrows(p); len(got) != 1 || !strings.Contains(got[0], "without a web server") {
		t.Errorf("policies that link certmagic through index: faults %q", got)
	}
}

func TestCommandMustHoldTheModules(t *testing.T) {
	t.Parallel()
	p := pkg{ImportPath: module + "/xcaddy", Imports: []string{"github.com/caddyserver/caddy/v2/cmd"}}
	if got := brokenArrows(p); len(got) != 1 || !strings.Contains(got[0], "does not import") {
		t.Errorf("xcaddy without the root package: faults %q", got)
	}
}

// sources returns the paths of a package's files, those for other systems and build tags included, tests excluded.
func sources(p pkg) (files []string) {
	for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles) {
		if !strings.HasSuffix(name, "_test.go") {
			files = append(files, filepath.Join(p.Dir, name))
		}
	}
	return files
}
