package caddymodule_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestBodiesHeldAreBounded sends a body that does not fit beside what max_buffered_bytes allows, and then one that does.
func TestBodiesHeldAreBounded(t *testing.T) {
	f := newFleet(t, 1)
	f.app = "max_buffered_bytes 4KiB"
	f.start(t)
	large := `{"model":"sim","max_tokens":1,"prompt":"` + strings.Repeat("word ", 2000) + `"}`
	a, err := post(t, http.DefaultClient, f.url("/v1/completions"), large)
	if err != nil {
		t.Fatal(err)
	}
	if a.status != http.StatusServiceUnavailable || a.header.Get("X-Inferrail-Reason") != "overloaded" || a.header.Get("Retry-After") == "" {
		t.Errorf("a body beyond the bound: %d %v %s", a.status, a.header, a.body)
	}
	mustPost(t, f.url("/v1/completions"), `{"model":"sim","max_tokens":1,"prompt":"word"}`)
	waitFor(t, "the bodies to be released", func() bool { return metric(t, "inferrail_buffered_bytes") == 0 })
}
