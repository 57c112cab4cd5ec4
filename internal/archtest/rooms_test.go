package archtest

import "strings"

const module = "github.com/inferrail/inferrail"

// A room is a folder's place in the house: what its packages may import besides the standard library. Tests may import more.
type room struct {
	// path is relative to the module, "." for its root. With "/..." it covers the folders below too, but for those that have
	// a room of their own.
	path string

	// ours and libraries are the packages that may be imported directly; "/..." as above. A room may always import itself.
	// Libraries are import paths, or "*" for any.
	ours, libraries []string

	// must lists packages of ours that it has to import.
	must []string

	// clockless rooms take the time as a parameter.
	clockless bool

	why string
}

// rooms is the house. A package without a room fails the test: a new folder comes with a line here. Some rooms have no package.
var rooms = []room{
	{
		path: "index/...", libraries: []string{"github.com/zeebo/xxh3"}, clockless: true,
		why: "index is the bottom of the house: block hashes and what the replicas hold, in virtual time too",
	},
	{
		path: "index/kvevents", ours: []string{"index"},
		libraries: []string{"github.com/vmihailenco/msgpack/...", "github.com/go-zeromq/zmq4"},
		why:       "kvevents brings the engines' events into index and knows nothing above it",
	},
	{
		path: "tokenize/...", ours: []string{"index", "tokenize/..."}, libraries: []string{"golang.org/x/text/..."}, clockless: true,
		why: "tokenize turns a request into token ids, which depend on nothing but the request and the model",
	},
	{
		path: "policies/...", ours: []string{"index", "policies/..."}, clockless: true,
		why: "a policy decides from what it is given, so that the same code runs in virtual time",
	},
	{
		path: "internal/fleet", ours: []string{"index"}, clockless: true,
		libraries: []string{"github.com/prometheus/client_model/go", "github.com/prometheus/common/..."},
		why:       "fleet counts and parses; caddymodule turns its counters into collectors, logs and events",
	},
	{
		path: "internal/...", clockless: true,
		why: "what several rooms share stands on the standard library alone",
	},
	{
		path: "internal/testutil",
		why:  "test helpers stand on the standard library alone",
	},
	{
		path: "simulator/engine", ours: []string{"index"}, clockless: true,
		why: "the engine model is a state machine without clock, goroutine or network",
	},
	{
		path:      "simulator/fleet",
		ours:      []string{"simulator/engine", "index/...", "policies", "internal/...", "tokenize"},
		clockless: true,
		why:       "a simulated fleet runs in virtual time",
	},
	{
		path:      "simulator",
		ours:      []string{"simulator/engine", "simulator/fleet", "index/...", "internal/...", "tokenize"},
		libraries: []string{"*"},
		why:       "the mock engine must not know the router that is tested on it",
	},
	{
		path:      "caddymodule/...",
		ours:      []string{"caddymodule/...", "index/...", "internal/...", "policies", "tokenize"},
		libraries: []string{"*"},
		why:       "the router must work without the mock engine, and never be written to suit it",
	},
	{
		path: "bench/...",
		ours: []string{"bench/...", "index", "internal/...", "policies", "simulator/engine", "simulator/fleet", "tokenize"},
		libraries: []string{
			"github.com/prometheus/client_model/go", "github.com/prometheus/common/...",
		},
		why: "bench measures the router from outside, over HTTP, as a client would",
	},
	{
		path: "xcaddy", ours: []string{"."}, must: []string{"."},
		libraries: []string{"github.com/caddyserver/caddy/v2/..."},
		why:       "the command is Caddy plus the root package, which is also what xcaddy builds in",
	},
	{
		path: ".", ours: []string{"caddymodule", "simulator"}, must: []string{"caddymodule", "simulator"},
		why: "the root package only registers the modules",
	},
}

// bans hold for all that a package links, however deep: an allowed library may bring in another.
var bans = []struct {
	rooms []string
	never []string
	why   string
}{
	{
		rooms: []string{"index/...", "tokenize/...", "policies/...", "internal/...", "simulator/engine", "simulator/fleet"},
		never: []string{"github.com/caddyserver/...", module + "/caddymodule/...", module + "/simulator"},
		why:   "the core is tested, fuzzed, simulated and reused without a web server",
	},
	{
		rooms: []string{"index/...", "tokenize/...", "policies/...", "internal/...", "simulator/engine", "simulator/fleet"},
		never: []string{"github.com/prometheus/client_golang/...", "go.uber.org/zap/..."},
		why:   "the core reports through plain structs; collectors and logs belong to the Caddy packages",
	},
	{
		rooms: []string{"index", "policies/...", "simulator/engine"},
		never: []string{"net", "net/http/..."},
		why:   "the core does no I/O",
	},
	{
		rooms: []string{"caddymodule/..."},
		never: []string{module + "/simulator/..."},
		why:   "the router must work without the mock engine",
	},
	{
		rooms: []string{"simulator/..."},
		never: []string{module + "/caddymodule/..."},
		why:   "the mock engine must not know the router that is tested on it",
	},
	{
		rooms: []string{"bench/..."},
		never: []string{"github.com/caddyserver/...", module + "/caddymodule/...", module + "/simulator"},
		why:   "bench measures the router from outside, over HTTP, as a client would",
	},
}

// matches reports whether path is the pattern, or lies below a pattern that ends in "/...".
func matches(pattern, path string) bool {
	if pattern == "*" {
		return true
	}
	folder, deep := strings.CutSuffix(pattern, "/...")
	return path == folder || deep && strings.HasPrefix(path, folder+"/")
}

func matchesAny(patterns []string, path string) bool {
	for _, p := range patterns {
		if matches(p, path) {
			return true
		}
	}
	return false
}

// roomOf returns the room of a package of ours, the one with the longest path, or nil.
func roomOf(path string) *room {
	var found *room
	for i := range rooms {
		if r := &rooms[i]; matches(r.path, path) && (found == nil || len(r.path) > len(found.path)) {
			found = r
		}
	}
	return found
}

// ours returns an import path's folder in the module, "." for the root.
func ours(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// standard reports whether an import path belongs to the standard library, whose paths have no dot in their first element.
func standard(importPath string) bool {
	first, _, _ := strings.Cut(importPath, "/")
	return !strings.Contains(first, ".")
}
