package tokenize

import (
	"strings"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func TestCharacterClasses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		r    rune
		want charClass
	}{
		{'a', classLetter}, {'é', classLetter}, {'人', classLetter}, {'ᴬ', classLetter}, {0x10d4a, classLetter}, // Garay, Unicode 16
		{'7', classNumber}, {'²', classNumber}, {'Ⅷ', classNumber}, {'๑', classNumber},
		{' ', classSpace}, {'\n', classSpace}, {0x85, classSpace}, {0xa0, classSpace}, {0x3000, classSpace},
		{0x1c, classOther}, {0x200b, classOther}, {0xfeff, classOther}, {'!', classOther}, {'😀', classOther}, {0x301, classOther}, {0x10ffff, classOther},
	} {
		if got := classOf(tc.r) & classMask; got != tc.want {
			t.Errorf("class of %U is %d, want %d", tc.r, got, tc.want)
		}
	}
}

// Where the two agree on the characters and no run of marks is long, nfc is
// golang.org/x/text's.
func TestNFCAgreesWithText(t *testing.T) {
	t.Parallel()
	letters := []rune("aeioAEö人각ﬁΩ가 \u1100\u1161\u11a8\u0301\u0323\u0327\u0308\u0345\u093c\u0915\u0958\u05b0\u05bc\u212b\u0344\U0001d15e\U000110ba\U00011099")
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOfN(rapid.RuneFrom(letters), 0, 25, -1).Draw(t, "text")
		if got, want := nfc(s), norm.NFC.String(s); got != want {
			t.Fatalf("%q: got %q, want %q", s, got, want)
		}
	})
}

func TestNFCOfLongRuns(t *testing.T) {
	in := "a" + strings.Repeat("\u0308\u0323", 500)
	want := "\u1ea1" + strings.Repeat("\u0323", 499) + strings.Repeat("\u0308", 500)
	if got := nfc(in); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if s := "plain text, é, 人"; nfc(s) != s {
		t.Errorf("%q changes to %q", s, nfc(s))
	}
	if n := testing.AllocsPerRun(10, func() { nfc("plain text, é, 人, 각") }); n != 0 {
		t.Errorf("%v allocations for a text that does not change", n)
	}
}

func TestSplitQwen(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ text, want string }{
		{"Hello, how are you?", "Hello|,| how| are| you|?"},
		{"don't DON'T 'ſx l'ſ", "don|'t| DON|'T| '|ſx| l|'ſ"},
		{"we'll I've 'lé 'v", "we|'ll| I|'ve| '|lé| '|v"},
		{"a12  b", "a|1|2| | b"},
		{"a  \n\n  b \n", "a|  \n\n| | b| \n"},
		{"x   ", "x|   "}, {"x \u3000y", "x| |\u3000y"},
		{"..\r\n\n!x", "..\r\n\n|!x"}, {" ?\n", " ?\n"}, {"\tx", "\tx"}, {"\nx", "\n|x"},
		{"'", "'"}, {"'s", "'s"}, {" 7", " |7"}, {"\u0301a", "\u0301a"},
	} {
		var got []string
		for s := tc.text; s != ""; {
			n := splitQwen(s)
			got, s = append(got, s[:n]), s[n:]
		}
		if strings.Join(got, "|") != tc.want {
			t.Errorf("%q: got %q, want %q", tc.text, strings.Join(got, "|"), tc.want)
		}
	}
}

// Rust's from_utf8_lossy gives one U+FFFD for each maximal part of a sequence.
func TestLossyText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a\xe4\xb8b": "a\ufffdb", "\xe4\xb8": "\ufffd", "\xf0\x9f\x98": "\ufffd", "\xf0\x9f\x98\xf0\x9f\x98\x80": "\ufffd😀",
		"\x80\x80": "\ufffd\ufffd", "\xc0\xaf": "\ufffd\ufffd", "\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\xe0\x80": "\ufffd\ufffd",
		"\xf4\x90\x80": "\ufffd\ufffd\ufffd", "\xe4\xb8\xad": "中", "\ufffd": "\ufffd",
	} {
		if got := string(appendLossy(nil, []byte(in))); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
