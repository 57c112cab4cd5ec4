package caddymodule_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/google/go-cmp/cmp"
)

// source is the package's own code, tests left out.
type source struct {
	comments map[string]string // doc comments by function, methods as Type.name
	words    []string          // every literal that could be a subdirective
}

func readSource(t *testing.T) source {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	s := source{comments: make(map[string]string)}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		s.read(file)
	}
	slices.Sort(s.words)
	s.words = slices.Compact(s.words)
	return s
}

var word = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func (s *source) read(file *ast.File) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			name := n.Name.Name
			if n.Recv != nil {
				if star, ok := n.Recv.List[0].Type.(*ast.StarExpr); ok {
					name = star.X.(*ast.Ident).Name + "." + name
				}
			}
			s.comments[name] = n.Doc.Text()
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && word.MatchString(text) {
				s.words = append(s.words, text)
			}
		}
		return true
	})
}

// grammar reads the first block of code after "Syntax:" and lists the subdirectives of each block in it, the block named
// by the words that open it and those around it.
func grammar(t *testing.T, comment string) map[string][]string {
	t.Helper()
	_, text, ok := strings.Cut(comment, "Syntax:\n")
	if !ok {
		t.Fatalf("no syntax in %q", comment)
	}
	listed := make(map[string][]string)
	var path []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
			continue
		case !strings.HasPrefix(line, "\t"):
			return listed
		case strings.HasPrefix(words[0], "}"):
			path = path[:len(path)-1]
			continue
		case !strings.HasPrefix(words[0], "<"):
			block := strings.Join(path, " ")
			listed[block] = append(listed[block], words[0])
		}
		if strings.HasSuffix(words[len(words)-1], "{") {
			path = append(path, words[0])
		}
	}
	return listed
}

// accepted are the words that a block takes as a subdirective; the block is where the % is in a Caddyfile.
func accepted(t *testing.T, config string, words []string) []string {
	t.Helper()
	var taken []string
	for _, word := range words {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(strings.Replace(config, "%", word, 1)), nil)
		if err == nil || !strings.Contains(err.Error(), "unrecognized subdirective") {
			taken = append(taken, word)
		}
	}
	return taken
}

// TestSyntaxCommentsMatchTheParsers feeds every word of the source to every block: the parsers take exactly the
// subdirectives that the comments list, but for those of Caddy that the comment says are passed on.
func TestSyntaxCommentsMatchTheParsers(t *testing.T) {
	src := readSource(t)
	if len(src.words) < 50 {
		t.Fatalf("only %d words were found in the source", len(src.words))
	}
	for _, tc := range []struct{ function, block, config, passedOn string }{
		{"parseApp", "inferrail", "{\n inferrail {\n%\n}\n}\n", ""},
		{"parseApp", "inferrail model", "{\n inferrail {\n model m {\n%\n}\n}\n}\n", ""},
		{"parseApp", "inferrail model cost_model", "{\n inferrail {\n model m {\n cost_model {\n%\n}\n}\n}\n}\n", ""},
		{"parseDirective", "inferrail", ":80 {\n inferrail a:1 {\n%\n}\n}\n", ":80 {\n reverse_proxy a:1 {\n%\n}\n}\n"},
		{"Selection.UnmarshalCaddyfile", "lb_policy", ":80 {\n reverse_proxy a:1 {\n lb_policy inferrail {\n%\n}\n}\n}\n", ""},
		{"Transport.UnmarshalCaddyfile", "transport", ":80 {\n reverse_proxy a:1 {\n transport inferrail {\n%\n}\n}\n}\n",
			":80 {\n reverse_proxy a:1 {\n transport http {\n%\n}\n}\n}\n"},
		{"CostModel.UnmarshalCaddyfile", "policy", ":80 {\n reverse_proxy a:1 {\n lb_policy inferrail cost_model {\n%\n}\n}\n}\n", ""},
		{"CostModel.UnmarshalCaddyfile", "policy", ":80 {\n inferrail a:1 {\n policy cost_model {\n%\n}\n}\n}\n", ""},
	} {
		t.Run(tc.function+" "+tc.block, func(t *testing.T) {
			listed := grammar(t, src.comments[tc.function])[tc.block]
			slices.Sort(listed)
			if len(listed) == 0 {
				t.Fatal("the comment lists nothing")
			}
			taken := accepted(t, tc.config, src.words)
			if tc.passedOn != "" {
				theirs := accepted(t, tc.passedOn, src.words)
				taken = slices.DeleteFunc(taken, func(w string) bool { return slices.Contains(theirs, w) })
			}
			if diff := cmp.Diff(listed, taken); diff != "" {
				t.Errorf("the comment and the parser differ (-comment +parser):\n%s", diff)
			}
		})
	}
}
