package tokenize

// completion is what a completion request asks for: text, or ids when not nil.
type completion struct {
	text       string
	ids        []uint32
	truncation truncation
}

// completionFields are the other members of a body that decide on its tokens.
type completionFields struct {
	embeds, addSpecial, truncate, truncationSide, kvParameters value
}

func (f *completionFields) field(key string) *value {
	switch key {
	case "prompt_embeds":
		return &f.embeds
	case "add_special_tokens":
		return &f.addSpecial
	case "truncate_prompt_tokens":
		return &f.truncate
	case "truncation_side":
		return &f.truncationSide
	case "kv_transfer_params":
		return &f.kvParameters
	}
	return nil
}

// parseCompletion reads the body of a completion request. The prompt is a
// string, a list of one string, a list of ids or a list of one list of ids.
func parseCompletion(body []byte) (*completion, error) {
	d, err := newDecoder(body)
	if err != nil {
		return nil, err
	}
	var c completion
	var f completionFields
	refused := invalid("prompt is missing")
	err = d.fields(func(key string) error {
		var err error
		if key == "prompt" {
			c.text, c.ids = "", nil
			refused, err = c.prompt(d)
		} else if v := f.field(key); v != nil {
			*v, err = d.value(1)
		} else {
			err = d.skip(1)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !f.embeds.absent():
		return nil, unsupported(ReasonEmbeds, "the request brings embeddings")
	case !f.kvParameters.get("prompt_token_ids").absent():
		return nil, unsupported(ReasonReuse, "the request brings prompt_token_ids")
	case refused != nil:
		return nil, refused
	case d.surrogate:
		return nil, invalid("a string holds a lone surrogate")
	}
	if _, err := flag("add_special_tokens", f.addSpecial, true); err != nil {
		return nil, err
	}
	c.truncation, err = parseTruncation(f.truncate, f.truncationSide)
	return &c, err
}

// prompt reads the value of "prompt". refused is the error of a well-formed
// value that is not one prompt, err that of malformed JSON.
func (c *completion) prompt(d *decoder) (refused, err error) {
	start := d.i
	if d.i < len(d.s) && d.s[d.i] == '"' {
		c.text, err = d.str()
		return nil, err
	}
	if refused = c.list(d); refused == nil {
		return nil, nil
	}
	d.i = start
	return refused, d.skip(1)
}

// list reads a prompt that is a list. After an error the cursor is anywhere.
func (c *completion) list(d *decoder) error {
	if d.i >= len(d.s) || d.s[d.i] != '[' {
		return invalid("prompt is neither a string nor a list")
	}
	prompts := 0
	c.ids = []uint32{}
	err := d.members(func() error {
		if d.i >= len(d.s) {
			return d.errorf("a value is missing")
		}
		var err error
		switch d.s[d.i] {
		case '"', '[':
			if prompts++; prompts > 1 {
				return unsupported(ReasonBatch, "the request holds several prompts")
			}
			if len(c.ids) > 0 {
				return invalid("prompt mixes ids and prompts")
			}
			if d.s[d.i] == '[' {
				return d.members(func() error { return c.id(d) }, ']')
			}
			c.text, err = d.str()
			c.ids = nil
		default:
			if prompts > 0 {
				return invalid("prompt mixes ids and prompts")
			}
			err = c.id(d)
		}
		return err
	}, ']')
	return err
}

func (c *completion) id(d *decoder) error {
	v, err := d.scalar()
	if err != nil {
		return err
	}
	n, ok := v.integer()
	if v.kind != kindNumber || !ok || n < 0 || n > 1<<32-1 {
		return invalid("a token id is not an integer from 0 to 2^32-1")
	}
	c.ids = append(c.ids, uint32(n))
	return nil
}
