package simulator

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// params is a checked completion or chat request, all but the prompt's tokens.
type params struct {
	chat    bool
	obj     object
	model   string
	prompts []promptSpec // completions; chats have none here

	stream          bool
	includeUsage    bool
	continuousUsage bool

	n           integer
	maxTokens   integer
	hasMax      bool // a maximum was given
	minTokens   integer
	temperature float64
	topP, minP  float64
	topK        integer
	presence    float64
	frequency   float64
	repetition  float64
	seed        int64
	hasSeed     bool

	ignoreEOS      bool
	stop           []string
	stopTokens     []uint32 // sorted
	includeStop    bool
	echo           bool
	returnTokenIDs bool
	priority       int
	cacheSalt      string
	requestID      string
	truncate       integer
	hasTruncate    bool
	keepStart      bool // truncation_side is right
	addGeneration  bool
	continueFinal  bool
}

// defaultCompletionTokens is max_tokens of a completion that does not name it, as in OpenAI's API.
const defaultCompletionTokens = 16

// parseRequest checks the shape of a body. Faults are reported in vLLM's order: first what the validators see that run
// before pydantic, then pydantic's own.
func parseRequest(body []byte, chat bool) (*params, error) {
	v, obj, err := parseBody(body)
	if err != nil {
		return nil, bodyError(err)
	}
	switch v.kind {
	case kindDict:
	case kindNull:
		return nil, oneFault(fieldError{"missing", "body", "Field required", v.input(), ""})
	default:
		return nil, oneFault(fieldError{
			"model_attributes_type", "body",
			"Input should be a valid dictionary or object to extract fields from", v.input(), "",
		})
	}
	f := &fields{obj: obj}
	if err := f.before(chat); err != nil {
		return nil, err
	}
	p := &params{chat: chat, obj: obj}
	p.read(f)
	if chat {
		f.messages(v)
		f.literal("reasoning_effort", "'none', 'minimal', 'low', 'medium', 'high', 'xhigh' or 'max'",
			"none", "minimal", "low", "medium", "high", "xhigh", "max")
	} else {
		p.prompts = f.prompts()
	}
	if err := f.faults.err(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *params) read(f *fields) {
	p.model = f.str("model")
	p.stream = f.boolean("stream")
	if v, ok := f.get("stream_options"); ok {
		opts := v.dict()
		p.includeUsage = f.booleanAt("stream_options.include_usage", opts["include_usage"])
		p.continuousUsage = f.booleanAt("stream_options.continuous_usage_stats", opts["continuous_usage_stats"]) &&
			p.includeUsage
	}
	p.readSampling(f)
	p.readLimits(f)
	p.stop = f.stops()
	p.stopTokens = f.tokenIDs("stop_token_ids")
	slices.Sort(p.stopTokens)
	p.includeStop = f.boolean("include_stop_str_in_output")
	p.ignoreEOS = f.boolean("ignore_eos")
	p.returnTokenIDs = f.boolean("return_token_ids")
	p.cacheSalt = f.str("cache_salt")
	p.requestID = f.str("request_id")
	if n, ok := f.integer("priority"); ok {
		p.priority = int(n.n)
	}
	p.truncate, p.hasTruncate = f.integer("truncate_prompt_tokens")
	f.literal("truncation_side", "'left' or 'right'", "left", "right")
	if side, ok := f.get("truncation_side"); ok {
		p.keepStart = side.kind == kindString && decodeString(side.raw) == "right"
	}
	p.echo = f.boolean("echo") && !p.chat
	p.continueFinal = f.boolean("continue_final_message")
	_, given := f.get("add_generation_prompt")
	p.addGeneration = !given || f.boolean("add_generation_prompt")
}

func (p *params) readSampling(f *fields) {
	p.n = newInteger(1)
	if n, ok := f.integer("n"); ok {
		p.n = n
	}
	p.temperature = f.number("temperature", 1)
	p.topP = f.number("top_p", 1)
	p.minP = f.number("min_p", 0)
	p.topK, _ = f.integer("top_k")
	p.presence = f.number("presence_penalty", 0)
	p.frequency = f.number("frequency_penalty", 0)
	p.repetition = f.number("repetition_penalty", 1)
	p.seed, p.hasSeed = f.seed()
}

func (p *params) readLimits(f *fields) {
	p.maxTokens, p.hasMax = f.integer("max_tokens")
	if p.chat {
		if n, ok := f.integer("max_completion_tokens"); ok {
			p.maxTokens, p.hasMax = n, true
		}
	} else if _, given := f.obj.members["max_tokens"]; !given {
		p.maxTokens, p.hasMax = newInteger(defaultCompletionTokens), true
	}
	p.minTokens = newInteger(0)
	if n, ok := f.integer("min_tokens"); ok {
		p.minTokens = n
	}
}

// before are the checks that see the raw body (the mode="before" validators of vLLM's protocol classes), and the
// refusal of what the simulator does not do.
func (f *fields) before(chat bool) error {
	if v, ok := f.get("stream_options"); ok && truthy(v) {
		if stream, _ := f.get("stream"); !truthy(stream) {
			return badParam("Stream options can only be defined when `stream=True`.", "stream_options")
		}
	}
	if err := f.logprobs(chat); err != nil {
		return err
	}
	if v, ok := f.get("cache_salt"); ok && (v.kind != kindString || len(v.raw) == 2) {
		return badParam("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")
	}
	if chat {
		if v, _ := f.get("echo"); truthy(v) {
			return notSimulated("echo")
		}
		if err := f.tools(); err != nil {
			return err
		}
	} else if err := f.promptGiven(); err != nil {
		return err
	}
	return f.structured()
}

// truthy is Python's bool() of a value; the zero value is missing and false.
func truthy(v value) bool {
	switch v.kind {
	case kindNull:
		return false
	case kindBool:
		return v.raw[0] == 't'
	case kindInt, kindFloat:
		return v.float() != 0
	case kindString:
		return len(v.raw) > 2
	default:
		return v.n > 0
	}
}

// maxLogprobs is vLLM's --max-logprobs.
const maxLogprobs = 20

func (f *fields) logprobs(chat bool) error {
	stream, _ := f.get("stream")
	if v, ok := f.get("prompt_logprobs"); ok {
		if truthy(stream) && v.kind == kindInt && v.float() > 0 {
			return badParam("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
		}
		return notSimulated("prompt_logprobs")
	}
	v, ok := f.get("logprobs")
	if !chat {
		if !ok || v.kind == kindBool && !truthy(v) {
			return nil
		}
		if n, typ, _ := toInteger(v); typ == "" && n.n < -1 {
			return badValue("`logprobs` must be a positive value or -1.", "logprobs", n.text)
		}
		return notSimulated("logprobs")
	}
	if top, given := f.get("top_logprobs"); given {
		n, typ, _ := toInteger(top)
		if typ == "" && n.n < 0 && n.n != -1 {
			return badValue("`top_logprobs` must be a positive value or -1.", "top_logprobs", n.text)
		}
		if typ == "" && n.n != 0 && !truthy(v) {
			return badParam("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
		}
		if typ == "" && n.n > maxLogprobs {
			return badValue(fmt.Sprintf("Requested sample logprobs of %s, which is greater than max allowed: %d",
				n.text, maxLogprobs), "logprobs", n.text)
		}
	}
	if truthy(v) {
		return notSimulated("logprobs")
	}
	return nil
}

// tools refuses tool calls as a server without --enable-auto-tool-choice and --tool-call-parser does.
func (f *fields) tools() error {
	tools, _ := f.get("tools")
	choice, ok := f.get("tool_choice")
	if !ok {
		if truthy(tools) {
			return badRequest(`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)
		}
		return nil
	}
	name := choice.input()
	if choice.kind == kindString && name == "none" {
		return nil
	}
	if !truthy(tools) {
		return badParam("When using `tool_choice`, `tools` must be set.", "tool_choice")
	}
	switch {
	case choice.kind == kindString && name == "auto":
		return badRequest(`"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set`)
	case choice.kind == kindString && name == "required":
		return badRequest(`tool_choice="required" requires --tool-call-parser to be set`)
	case choice.kind != kindDict:
		return badParam("Invalid value for `tool_choice`: "+name+"! Only named tools, \"none\", \"auto\" or \"required\" "+
			"are supported.", "tool_choice")
	}
	want := functionName(choice)
	known := false
	tools.items(func(tool value) bool {
		known = want != "" && functionName(tool) == want
		return !known
	})
	if !known {
		return badParam("The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice")
	}
	return badRequest(`tool_choice=function "` + want + `" requires --tool-call-parser to be set`)
}

func functionName(v value) string {
	name := v.dict()["function"].dict()["name"]
	if name.kind != kindString {
		return ""
	}
	return decodeString(name.raw)
}

// structured refuses output constraints, which need a grammar.
func (f *fields) structured() error {
	if v, ok := f.get("response_format"); ok {
		typ := v.dict()["type"]
		name := ""
		if typ.kind == kindString {
			name = decodeString(typ.raw)
		}
		switch name {
		case "text":
		case "json_object", "json_schema", "structural_tag":
			return notSimulated("response_format")
		default:
			return responseFormatFaults(v, typ)
		}
	}
	for _, name := range []string{
		"structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object",
	} {
		if v, ok := f.get(name); ok && truthy(v) {
			return notSimulated(name)
		}
	}
	return nil
}

// responseFormatFaults are pydantic's for a response_format that is none of the union's three members.
func responseFormatFaults(v, typ value) error {
	var f faults
	add := func(typ, loc, msg, input, ctx string) {
		f.add(fieldError{typ, "body.response_format." + loc, msg, input, ctx})
	}
	literal := func(expected string) {
		if typ.raw == nil {
			add("missing", "type", "Field required", v.input(), "")
			return
		}
		add("literal_error", "type", "Input should be "+expected, typ.input(), "{'expected': "+pyRepr(expected)+"}")
	}
	required := func(names ...string) {
		members := v.dict()
		for _, name := range names {
			if _, ok := members[name]; !ok {
				add("missing", name, "Field required", v.input(), "")
			}
		}
	}
	literal("'text', 'json_object' or 'json_schema'")
	literal("'structural_tag'")
	required("format")
	literal("'structural_tag'")
	required("structures", "triggers")
	return f.err()
}

func (f *fields) messages(body value) {
	v, given := f.obj.members["messages"]
	switch {
	case !given:
		f.refuse("missing", "messages", "Field required", body, "")
	case v.kind != kindList:
		f.refuse("list_type", "messages", "Input should be a valid list", v.value, "")
		return
	}
	i := 0
	v.items(func(m value) bool {
		f.nullContent(i, m)
		i++
		return true
	})
}

// nullContent refuses content that is null; only an assistant's may be. vLLM lists the faults of all kinds of messages,
// this one that of the message's own.
func (f *fields) nullContent(i int, message value) {
	if !bytes.Contains(message.raw, []byte("null")) {
		return
	}
	fields := message.dict()
	content, given := fields["content"]
	if !given || content.kind != kindNull {
		return
	}
	kind := map[string]string{
		`"user"`: "User", `"system"`: "System", `"developer"`: "Developer", `"tool"`: "Tool",
	}[string(fields["role"].raw)]
	if kind != "" {
		f.refuse("string_type", "messages."+strconv.Itoa(i)+".ChatCompletion"+kind+"MessageParam.content",
			"Input should be a valid string", content, "")
	}
}
