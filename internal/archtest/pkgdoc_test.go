package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// docFault says what is wrong with a package's comment, or nothing. Files by name; those of another package, such as a
// generator that the build ignores, do not count.
func docFault(name string, files map[string]*ast.File) string {
	start := "Package " + name + " "
	if name == "main" {
		start = "Command "
	}
	var in []string
	for file, f := range files {
		if f.Name.Name != name {
			continue
		}
		text := f.Doc.Text()
		if strings.TrimSpace(text) == "" {
			continue
		}
		in = append(in, file)
		if !strings.HasPrefix(text, start) {
			return fmt.Sprintf("the package comment in %s does not start with %q: %.40q", file, start, text)
		}
	}
	if len(in) != 1 {
		return fmt.Sprintf("%d package comments, want one: %q", len(in), in)
	}
	return ""
}

func TestEachPackageSaysWhatItIsFor(t *testing.T) {
	t.Parallel()
	for _, p := range listed(t) {
		files := map[string]*ast.File{}
		for _, name := range sources(p) {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files[filepath.Base(name)] = f
		}
		if fault := docFault(p.Name, files); fault != "" {
			t.Errorf("%s: %s", p.ImportPath, fault)
		}
	}
}

func TestPackageCommentFaultsAreFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		pkg   string
		files []string
		want  string
	}{
		{"one", "a", []string{"// Package a is.\npackage a", "package a"}, ""},
		{"a command", "main", []string{"// Command a does.\npackage main"}, ""},
		{"none", "a", []string{"package a"}, "0 package comments"},
		{"two", "a", []string{"// Package a is.\npackage a", "// Package a is.\npackage a"}, "2 package comments"},
		{"another beginning", "a", []string{"// This is a.\npackage a"}, "does not start"},
		{"another name", "a", []string{"// Package ab is.\npackage a"}, "does not start"},
		{"only a directive", "a", []string{"//go:build linux\npackage a"}, "0 package comments"},
		{"a generator beside it", "a", []string{"// Package a is.\npackage a", "// Writes tables.\npackage main"}, ""},
	} {
		files := map[string]*ast.File{}
		for i, src := range tc.files {
			f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files[fmt.Sprintf("%d.go", i)] = f
		}
		if got := docFault(tc.pkg, files); tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: fault %q, want %q", tc.name, got, tc.want)
		}
	}
}
