package tokenize

import (
	"unicode/utf8"
)

// The simulator's tokenizer needs no vocabulary: an id holds its own text. The
// two top bits say which kind of token it is:
//
//	00  up to four ASCII characters: bits 28-29 their number less one, then
//	    seven bits for each, the first character lowest
//	01  one character outside ASCII, its code point in the low 21 bits
//	10  one byte of invalid UTF-8, in the low 8 bits
//	11  a special token, its number in the low bits
const (
	simKindShift = 30
	simASCII     = 0
	simRune      = 1
	simByte      = 2
	simSpecial   = 3
	simRun       = 4 // ASCII characters in a token
)

// Special tokens of the simulator's prompts.
const (
	SimStart   uint32 = simSpecial<<simKindShift | iota // starts a message; its role follows
	SimMessage                                          // ends the role; the content follows
	SimEnd                                              // ends a message, and a generated answer
)

var simSpecials = [...]string{"<|start|>", "<|message|>", "<|end|>"}

// simFingerprint changes with anything that changes the simulator's ids.
const simFingerprint = "inferrail-sim-1"

// NewSim returns the simulator's model: a deterministic stand-in for a real
// tokenizer and chat template, which the router shares, so that both agree by
// construction.
//
// Tokens are cut greedily from the left, four ASCII characters or one other
// character each, so that they depend only on the text to their left: of two
// texts with a common prefix (ending between characters), all tokens of the
// prefix but its last are tokens of both. A special token starts a new cut.
//
// A chat is a sequence of messages <|start|>role<|message|>content<|end|>, led
// by one of role "tools" with the request's tools as written, when there are any;
// an assistant's tool calls follow its message as one of role "tool_calls".
// Reasoning is left out. The prompt ends with <|start|>assistant<|message|>.
// Special tokens come only from there: text that spells one is ordinary text.
func NewSim() *Model {
	return &Model{name: "sim", fingerprint: simFingerprint, tokenizer: simTokenizer{}, template: simTemplate{}}
}

type simTokenizer struct{}

func (simTokenizer) Append(dst []uint32, text string) ([]uint32, error) {
	return appendSim(dst, text), nil
}

func appendSim(dst []uint32, text string) []uint32 {
	for i := 0; i < len(text); {
		if text[i] >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(text[i:])
			if r == utf8.RuneError && n == 1 {
				dst = append(dst, simByte<<simKindShift|uint32(text[i]))
			} else {
				dst = append(dst, simRune<<simKindShift|uint32(r))
			}
			i += n
			continue
		}
		id, n := uint32(0), 0
		for n < simRun && i < len(text) && text[i] < utf8.RuneSelf {
			id |= uint32(text[i]) << (7 * n)
			n++
			i++
		}
		dst = append(dst, id|uint32(n-1)<<28)
	}
	return dst
}

// Decode gives U+FFFD for bytes of invalid UTF-8 and for ids that Append never
// gives, and a special token's spelling.
func (simTokenizer) Decode(dst []byte, ids []uint32) []byte {
	for _, id := range ids {
		low := id & (1<<simKindShift - 1)
		switch id >> simKindShift {
		case simASCII:
			for n := range low>>28 + 1 {
				dst = append(dst, byte(low>>(7*n)&0x7f))
			}
		case simRune:
			r := rune(low)
			if r < utf8.RuneSelf {
				r = utf8.RuneError
			}
			dst = utf8.AppendRune(dst, r)
		case simSpecial:
			if low < uint32(len(simSpecials)) {
				dst = append(dst, simSpecials[low]...)
				continue
			}
			fallthrough
		default:
			dst = utf8.AppendRune(dst, utf8.RuneError)
		}
	}
	return dst
}

type simTemplate struct{}

// AppendChat implements [TokenTemplate].
func (simTemplate) AppendChat(dst []uint32, chat *Chat) ([]uint32, error) {
	if dst == nil {
		dst = make([]uint32, 0, chat.size/simRun+8*len(chat.Messages)+16)
	}
	simMessages(chat, func(special uint32, text string) {
		if special != 0 {
			dst = append(dst, special)
		}
		dst = appendSim(dst, text)
	})
	return dst, nil
}

// Render implements [Template].
func (simTemplate) Render(dst []byte, chat *Chat) ([]byte, error) {
	simMessages(chat, func(special uint32, text string) {
		if special != 0 {
			dst = append(dst, simSpecials[special&^(simSpecial<<simKindShift)]...)
		}
		dst = append(dst, text...)
	})
	return dst, nil
}

// simMessages gives the prompt piece by piece: a special token, or 0, and the
// text after it.
func simMessages(chat *Chat, piece func(special uint32, text string)) {
	message := func(role, content string) {
		piece(SimStart, role)
		piece(SimMessage, content)
	}
	if chat.Tools != "" {
		message("tools", chat.Tools)
		piece(SimEnd, "")
	}
	for i, m := range chat.Messages {
		message(m.Role, m.Content)
		if m.ToolCalls != "" {
			piece(SimEnd, "")
			message("tool_calls", m.ToolCalls)
		}
		if !chat.ContinueFinalMessage || i < len(chat.Messages)-1 {
			piece(SimEnd, "")
		}
	}
	if chat.AddGenerationPrompt {
		message("assistant", "")
	}
}

// SimText returns the i-th token of the text that the simulator generates for
// seed: always one token of four ASCII characters, a word of three letters and
// a space. Text made of such tokens alone gives the same ids again when it comes
// back as a message's content.
func SimText(seed uint64, i int) uint32 {
	x := seed + 0x9e3779b97f4a7c15*uint64(i+1) // splitmix64, after Steele, Lea and Flood (2014)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	at := int(x%uint64(simWordCount)) * simRun
	return uint32(simWords[at]) | uint32(simWords[at+1])<<7 | uint32(simWords[at+2])<<14 |
		uint32(simWords[at+3])<<21 | (simRun-1)<<28
}

const simWordCount = len(simWords) / simRun

// simWords holds common words of three letters, a space after each.
const simWords = "ace act add age ago aid aim air all and ant any ape arc are arm art ash ask ate " +
	"bad bag ban bar bat bay bed bee beg bet bid big bin bit bow box boy bud bug bun bus but buy " +
	"cab can cap car cat cod cog cot cow cry cub cup cut dad dam day den dew did die dig dim dip doe dog dot dry due dug " +
	"ear eat ebb egg ego elk elm end era eve eye fad fan far fat fax fed fee few fig fin fir fit fix flu fly fog for fox fun fur " +
	"gap gas gel gem get gin got gum gun gut guy had ham has hat hay hen her hey hid him hip his hit hop hot how hub hue hug hut " +
	"ice icy ill ink inn ion its ivy jam jar jaw jet job jog joy jug key kid kin kit lab lad lag lap law lay led leg let lid lie lip lit log lot low " +
	"mad man map mat may men met mid mix mob mom mop mud mug nap net new nil nod nor not now nut oak oar oat odd off oil old one opt orb ore our out owe owl own " +
	"pad pan pat paw pay pea peg pen pet pie pig pin pit pod pop pot pro put ran rap rat raw ray red rib rid rim rip rob rod rot row rub rug run rye " +
	"sad sap sat saw say sea see set sew she shy sip sir sit six ski sky sly sob son sow soy spa spy sum sun tab tag tan tap tar tax tea ten the tie tin tip toe ton too top toy try tub tug two " +
	"urn use van vat vet via vow wag war was wax way web wed wet who why wig win wit won woo yak yam yes yet you zip zoo "
