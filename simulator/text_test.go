package simulator

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/inferrail/inferrail/internal/openai"
	"github.com/inferrail/inferrail/tokenize"
)

func simGenerator(t testing.TB) *generator {
	t.Helper()
	g, err := newGenerator(tokenize.NewSim())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// text generates n tokens and gives them to a stream in pieces of the given sizes, the last one taking the rest.
func generated(g *generator, plan *outputPlan, n int, pieces []int) (parts []string) {
	stream := textStream{plan: plan, decoder: g.tokenizer}
	for at := 0; at < n; {
		size := n - at
		if len(pieces) > 0 {
			size, pieces = min(size, pieces[0]), pieces[1:]
		}
		tokens := make([]uint32, size)
		for i := range tokens {
			tokens[i] = g.token(plan.seed, at+i)
		}
		at += size
		parts = append(parts, stream.add(tokens, at == n))
	}
	return parts
}

func TestEqualPromptsGiveEqualTexts(t *testing.T) {
	g := simGenerator(t)
	greedy := &params{hasMax: true}
	a, b := g.plan(greedy, []uint32{1, 2, 3}, 0, 8), g.plan(greedy, []uint32{1, 2, 3}, 0, 8)
	other := g.plan(greedy, []uint32{1, 2, 4}, 0, 8)
	if a.seed != b.seed || a.seed == other.seed {
		t.Errorf("seeds %x, %x for equal prompts, %x for another", a.seed, b.seed, other.seed)
	}
	sampled := &params{hasMax: true, temperature: 1, seed: 7, hasSeed: true}
	if x, y := g.plan(sampled, []uint32{1}, 0, 8), g.plan(sampled, []uint32{1}, 1, 8); x.seed == y.seed {
		t.Error("two sequences of a prompt have one text")
	}
}

func TestModelEndsByItselfOnlyWithoutAMaximum(t *testing.T) {
	g := simGenerator(t)
	for i := range uint32(200) {
		n := g.plan(&params{}, []uint32{i}, 0, 1000).stopAfter
		if n < minNaturalTokens || n > maxNaturalTokens {
			t.Fatalf("prompt %d ends after %d tokens, want %d to %d", i, n, minNaturalTokens, maxNaturalTokens)
		}
		if n := g.plan(&params{hasMax: true}, []uint32{i}, 0, 1000).stopAfter; n != 0 {
			t.Fatalf("with a maximum it ends after %d tokens", n)
		}
		if n := g.plan(&params{ignoreEOS: true}, []uint32{i}, 0, 1000).stopAfter; n != 0 {
			t.Fatalf("with ignore_eos it ends after %d tokens", n)
		}
	}
	if n := g.plan(&params{minTokens: newInteger(400)}, []uint32{1}, 0, 1000).stopAfter; n != 400 {
		t.Errorf("with min_tokens 400 it ends after %d tokens", n)
	}
}

func TestStopStringEndsTheText(t *testing.T) {
	g := simGenerator(t)
	p := &params{hasMax: true}
	free := g.plan(p, []uint32{5}, 0, 50)
	full := strings.Join(generated(g, &free, 50, nil), "")
	for _, tc := range []struct {
		name    string
		stop    []string
		include bool
		end     int
		reason  string
	}{
		{"over a token's border", []string{full[10:15]}, false, strings.Index(full, full[10:15]), full[10:15]},
		{"kept", []string{full[10:15]}, true, strings.Index(full, full[10:15]) + 5, full[10:15]},
		{"absent", []string{"ZZ"}, false, len(full), ""},
		{"the list's order within a token", []string{full[2:3], full[0:1]}, false, strings.Index(full, full[2:3]), full[2:3]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &params{hasMax: true, stop: tc.stop, includeStop: tc.include}
			plan := g.plan(p, []uint32{5}, 0, 50)
			n := plan.stopAfter
			if n == 0 {
				n = 50
			}
			if got := strings.Join(generated(g, &plan, n, nil), ""); got != full[:tc.end] {
				t.Errorf("text %q, want %q", got, full[:tc.end])
			}
			if plan.stop.Text != tc.reason {
				t.Errorf("stop reason %q, want %q", plan.stop.Text, tc.reason)
			}
		})
	}
}

func TestStopTokenIsLeftOutOfTheText(t *testing.T) {
	g := simGenerator(t)
	free := g.plan(&params{hasMax: true}, []uint32{5}, 0, 50)
	stop := g.token(free.seed, 3)
	first := 0
	for g.token(free.seed, first) != stop {
		first++
	}
	plan := g.plan(&params{hasMax: true, stopTokens: []uint32{stop}}, []uint32{5}, 0, 50)
	if plan.stopAfter != first+1 || plan.stop != (openai.StopReason{Kind: openai.StopToken, Token: stop}) {
		t.Fatalf("plan %+v, want a stop after %d tokens", plan, first+1)
	}
	want := strings.Join(generated(g, &free, 50, nil), "")[:4*first]
	if got := strings.Join(generated(g, &plan, plan.stopAfter, nil), ""); got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

// A stream's pieces make the whole text however the tokens are cut, and no piece shows what a stop string cuts off.
func TestStreamedTextIsTheWholeText(t *testing.T) {
	g := simGenerator(t)
	rapid.Check(t, func(t *rapid.T) {
		stop := rapid.StringMatching(`[a-z ]{1,6}`).Draw(t, "stop")
		p := &params{hasMax: true, stop: []string{stop}}
		plan := g.plan(p, []uint32{rapid.Uint32().Draw(t, "prompt")}, 0, 40)
		n := plan.stopAfter
		if n == 0 {
			n = 40
		}
		pieces := rapid.SliceOf(rapid.IntRange(1, 5)).Draw(t, "pieces")
		whole := strings.Join(generated(g, &plan, n, nil), "")
		if got := strings.Join(generated(g, &plan, n, pieces), ""); got != whole {
			t.Fatalf("pieces make %q, want %q", got, whole)
		}
		if strings.Contains(whole, stop) {
			t.Fatalf("the stop string %q is in %q", stop, whole)
		}
	})
}

func TestQwen3WordsComeBackAsTheSameTokens(t *testing.T) {
	m, err := loadQwen3()
	if err != nil {
		t.Fatal(err)
	}
	g, err := newGenerator(m)
	if err != nil {
		t.Fatal(err)
	}
	if len(g.words) < 200 {
		t.Errorf("%d words are single tokens, want at least 200", len(g.words))
	}
	want := make([]uint32, 64)
	for i := range want {
		want[i] = g.token(42, i)
	}
	text := g.tokenizer.Decode(nil, want)
	got, err := g.tokenizer.Append(nil, string(text))
	if err != nil {
		t.Fatal(err)
	}
	if string(openai.AppendTokenIDs(nil, got)) != string(openai.AppendTokenIDs(nil, want)) {
		t.Errorf("%q gives %v, want %v", text, got, want)
	}
}
