package simulator

import (
	"errors"
	"math"
	"strconv"

	"github.com/inferrail/inferrail/tokenize"
)

// promptSpec is one prompt of a completion request: text or token ids.
type promptSpec struct {
	text  []byte // the JSON string
	ids   []uint32
	isIDs bool
	// tooBig is the first id that no vocabulary holds, as text.
	tooBig string
}

func (f *fields) promptGiven() error {
	v, ok := f.get("prompt")
	if _, embeds := f.get("prompt_embeds"); embeds {
		return badParam("You must set `--enable-prompt-embeds` to input `prompt_embeds`.", "prompt_embeds")
	}
	if !ok || v.kind == kindString && len(v.raw) == 2 {
		return badParam("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
	}
	if v, ok := f.get("suffix"); ok && truthy(v) {
		return notSimulated("suffix")
	}
	return nil
}

// prompts reads prompt, which is a union: ids, lists of ids, a string, strings. As pydantic's smart mode does, an exact
// match goes before one that needs a conversion (["1", 2] is two ids).
func (f *fields) prompts() []promptSpec {
	v, ok := f.get("prompt")
	if !ok {
		return nil
	}
	if v.kind == kindString {
		return []promptSpec{{text: v.raw}}
	}
	strings, lists := 0, 0
	v.items(func(item value) bool {
		switch item.kind {
		case kindString:
			strings++
		case kindList:
			lists++
		}
		return true
	})
	switch {
	case v.kind != kindList:
	case strings == v.n && v.n <= maxSequences:
		out := make([]promptSpec, 0, v.n)
		v.items(func(item value) bool {
			out = append(out, promptSpec{text: item.raw})
			return true
		})
		return out
	case lists == v.n && v.n <= maxSequences:
		if out, ok := idLists(v); ok {
			return out
		}
	case lists == 0:
		if spec, ok := idPrompt(v); ok {
			return []promptSpec{spec}
		}
	}
	f.refusePrompt(v)
	return nil
}

func idLists(v value) ([]promptSpec, bool) {
	out := make([]promptSpec, 0, v.n)
	good := true
	v.items(func(item value) bool {
		var spec promptSpec
		spec, good = idPrompt(item)
		out = append(out, spec)
		return good
	})
	return out, good
}

func idPrompt(v value) (promptSpec, bool) {
	spec := promptSpec{ids: make([]uint32, 0, v.n), isIDs: true}
	good := true
	v.items(func(item value) bool {
		if id, ok := smallID(item); ok {
			spec.ids = append(spec.ids, id)
			return true
		}
		n, typ, _ := toInteger(item)
		switch {
		case typ != "" || n.n < 0:
			good = false
		case n.n > math.MaxUint32:
			if spec.tooBig == "" {
				spec.tooBig = n.text
			}
		default:
			spec.ids = append(spec.ids, uint32(n.n))
		}
		return good
	})
	return spec, good
}

// smallID reads an id of up to nine digits without allocating; long prompts consist of such.
func smallID(v value) (uint32, bool) {
	if v.kind != kindInt || len(v.raw) > 9 || v.raw[0] == '-' {
		return 0, false
	}
	id := uint32(0)
	for _, c := range v.raw {
		id = id*10 + uint32(c-'0')
	}
	return id, true
}

// refusePrompt lists the faults of each member of the union in turn.
func (f *fields) refusePrompt(v value) {
	const notList, notString = "Input should be a valid list", "Input should be a valid string"
	if v.kind != kindList {
		f.refuse("list_type", "prompt", notList, v, "")
		f.refuse("list_type", "prompt", notList, v, "")
		f.refuse("string_type", "prompt", notString, v, "")
		f.refuse("list_type", "prompt", notList, v, "")
		return
	}
	if v.n > maxSequences {
		f.refuse("too_long", "prompt", "The simulator takes at most "+strconv.Itoa(maxSequences)+" prompts", v, "")
		return
	}
	each := func(refuse func(loc string, item value)) {
		i := 0
		v.items(func(item value) bool {
			refuse("prompt."+strconv.Itoa(i), item)
			i++
			return true
		})
	}
	each(func(loc string, item value) {
		if n, ok := f.integerAt(loc, item); ok && n.n < 0 {
			f.refuse("greater_than_equal", loc, "Input should be greater than or equal to 0", item, "{'ge': 0}")
		}
	})
	each(func(loc string, item value) {
		if item.kind != kindList {
			f.refuse("list_type", loc, notList, item, "")
			return
		}
		i := 0
		item.items(func(inner value) bool {
			innerLoc := loc + "." + strconv.Itoa(i)
			if n, ok := f.integerAt(innerLoc, inner); ok && n.n < 0 {
				f.refuse("greater_than_equal", innerLoc, "Input should be greater than or equal to 0", inner, "{'ge': 0}")
			}
			i++
			return true
		})
	})
	f.refuse("string_type", "prompt", notString, v, "")
	each(func(loc string, item value) {
		if item.kind != kindString {
			f.refuse("string_type", loc, notString, item, "")
		}
	})
}

// promptTokens gives the tokens of every prompt of a request, checked against the context length.
func (s *Simulator) promptTokens(p *params) ([][]uint32, error) {
	var out [][]uint32
	if p.chat {
		tokens, err := s.chatTokens(p)
		if err != nil {
			return nil, err
		}
		out = [][]uint32{tokens}
	} else {
		if len(p.prompts) == 0 {
			return nil, badRequest("You must pass at least one prompt")
		}
		for i := range p.prompts {
			tokens, err := s.completionTokens(&p.prompts[i])
			if err != nil {
				return nil, err
			}
			out = append(out, tokens)
		}
	}
	for i, tokens := range out {
		tokens = p.truncated(tokens, s.MaxModelLen)
		if len(tokens) == 0 {
			return nil, badRequest("The decoder prompt cannot be empty")
		}
		if len(tokens) > s.MaxModelLen {
			return nil, tooLong(s.MaxModelLen)
		}
		out[i] = tokens
	}
	return out, nil
}

// tooLong is the refusal of a long prompt. The engine stops tokenizing at one token more than the context holds, so it
// knows no other count.
func tooLong(maxModelLen int) error {
	limit, got := strconv.Itoa(maxModelLen), strconv.Itoa(maxModelLen+1)
	return badValue("This model's maximum context length is "+limit+" tokens. However, your prompt contains at least "+
		got+" input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "+
		"input prompt.", "input_tokens", got)
}

// truncated applies truncate_prompt_tokens, which keeps the end of the prompt unless truncation_side is right; -1 means
// the context length.
func (p *params) truncated(tokens []uint32, maxModelLen int) []uint32 {
	if !p.hasTruncate {
		return tokens
	}
	keep := int(min(p.truncate.n, int64(len(tokens))))
	if p.truncate.n < 0 {
		keep = min(maxModelLen, len(tokens))
	}
	if p.keepStart {
		return tokens[:keep]
	}
	return tokens[len(tokens)-keep:]
}

// promptMembers are the members of a chat request that decide on its prompt. Truncation is done here.
var promptMembers = []string{
	"messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template_kwargs",
	"chat_template", "reasoning_effort", "kv_transfer_params",
}

func (s *Simulator) chatTokens(p *params) ([]uint32, error) {
	messages := p.obj.members["messages"]
	if messages.n == 0 {
		return nil, badRequest("Cannot apply chat template to an empty conversation. Provide at least one message.")
	}
	if hasLoneSurrogate(messages.raw) {
		return nil, loneSurrogate()
	}
	if p.continueFinal && p.addGeneration {
		return nil, badRequest("continue_final_message and add_generation_prompt are not compatible. Use " +
			"continue_final_message when you want the model to continue the final message, and add_generation_prompt " +
			"when you want to add a header that will prompt it to start a new assistant message instead.")
	}
	prompt, err := s.tokenizer.Chat(p.obj.only(promptMembers...))
	if err != nil {
		return nil, s.tokenizeError(err)
	}
	return prompt.Tokens, nil
}

func (s *Simulator) completionTokens(spec *promptSpec) ([]uint32, error) {
	if spec.isIDs {
		return spec.ids, s.checkVocabulary(spec)
	}
	if hasLoneSurrogate(spec.text) {
		return nil, loneSurrogate()
	}
	if len(spec.text) == 2 {
		return nil, nil // an empty string; refused by the caller
	}
	body := make([]byte, 0, len(spec.text)+len(`{"prompt":}`))
	body = append(append(append(body, `{"prompt":`...), spec.text...), '}')
	prompt, err := s.tokenizer.Completion(body)
	if err != nil {
		return nil, s.tokenizeError(err)
	}
	return prompt.Tokens, nil
}

func (s *Simulator) checkVocabulary(spec *promptSpec) error {
	if spec.tooBig != "" {
		return badRequest("Token id " + spec.tooBig + " is out of vocabulary")
	}
	if s.vocabulary == 0 {
		return nil
	}
	for _, id := range spec.ids {
		if int(id) >= s.vocabulary {
			return badRequest("Token id " + strconv.Itoa(int(id)) + " is out of vocabulary")
		}
	}
	return nil
}

// loneSurrogate is the error of the tokenizers library, which takes no text that is not UTF-8.
func loneSurrogate() error {
	return badRequest("TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]")
}

func (s *Simulator) tokenizeError(err error) error {
	var unsupported *tokenize.UnsupportedError
	if errors.As(err, &unsupported) {
		if unsupported.Reason == tokenize.ReasonImages {
			return badRequest(s.servedName() + " is not a multimodal model")
		}
		return badRequest("The simulator cannot tokenize this request: " + unsupported.Error())
	}
	var invalid *tokenize.InvalidError
	if errors.As(err, &invalid) {
		return badRequest(invalid.Detail)
	}
	return err
}

// only gives an object of some of the body's members.
func (o object) only(names ...string) []byte {
	size := 2
	for _, name := range names {
		if m, ok := o.members[name]; ok {
			size += m.to - m.from + 1
		}
	}
	b := append(make([]byte, 0, size), '{')
	for _, name := range names {
		if m, ok := o.members[name]; ok {
			if len(b) > 1 {
				b = append(b, ',')
			}
			b = append(b, o.body[m.from:m.to]...)
		}
	}
	return append(b, '}')
}
