package tokenize

import "errors"

// tools validates a request's tools and gives them the shape in which vLLM
// 0.32.0 hands them to the template: the fields of ChatCompletionToolsParam and
// FunctionDefinition in their order, description and parameters null when not
// given, strict and defer_loading left out then, anything else dropped
// (entrypoints/generate/base/protocol.py).
func tools(v value) ([]value, error) {
	if v.kind != kindArray {
		return nil, invalid("tools is not a list")
	}
	if len(v.c.values) == 0 {
		return nil, invalid("tools is empty")
	}
	out := make([]value, len(v.c.values))
	for i, t := range v.c.values {
		var err error
		if out[i], err = tool(t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func tool(t value) (value, error) {
	if t.kind != kindObject {
		return value{}, invalid("a tool is not an object")
	}
	if typ := t.get("type"); typ.kind != kindMissing && (typ.kind != kindString || typ.text != "function") {
		return value{}, invalid("a tool is not a function")
	}
	f := t.get("function")
	name, description, parameters := f.get("name"), f.get("description"), f.get("parameters")
	switch {
	case f.kind != kindObject:
		return value{}, invalid("a tool's function is not an object")
	case name.kind != kindString:
		return value{}, invalid("a tool's name is not a string")
	case !description.absent() && description.kind != kindString:
		return value{}, invalid("a tool's description is not a string")
	case !parameters.absent() && parameters.kind != kindObject:
		return value{}, invalid("a tool's parameters are not an object")
	}
	function := &collection{
		keys:   []string{"name", "description", "parameters"},
		values: []value{name, description, parameters},
	}
	outer := &collection{keys: []string{"type", "function"}, values: []value{{kind: kindString, text: "function"}, {}}}
	deferred, inner := t.get("defer_loading"), f.get("defer_loading")
	if inner.absent() {
		inner = deferred
	}
	for _, o := range []struct {
		to  *collection
		key string
		v   value
	}{{function, "strict", f.get("strict")}, {function, "defer_loading", inner}, {outer, "defer_loading", deferred}} {
		if o.v.absent() {
			continue
		}
		if o.v.kind != kindTrue && o.v.kind != kindFalse {
			return value{}, unsupported(ReasonTools, "a tool's %s is not a boolean", o.key)
		}
		o.to.keys, o.to.values = append(o.to.keys, o.key), append(o.to.values, o.v)
	}
	outer.values[1] = value{kind: kindObject, c: function}
	return value{kind: kindObject, c: outer}, nil
}

// toolCalls gives an assistant's tool calls the shape that templates see: each
// function's arguments as an object, {} for what is none
// (_postprocess_messages in vllm/renderers/chat_utils.py).
func toolCalls(calls []value) ([]value, error) {
	out := make([]value, len(calls))
	for i, call := range calls {
		f := call.get("function")
		if typ := call.get("type"); f.kind != kindObject ||
			typ.kind != kindMissing && (typ.kind != kindString || typ.text != "function") {
			return nil, invalid("a tool call is not a function")
		}
		name := f.get("name")
		if name.kind != kindString {
			return nil, invalid("a tool call's name is not a string")
		}
		arguments, err := toolArguments(f.get("arguments"))
		if err != nil {
			return nil, err
		}
		out[i] = value{kind: kindObject, c: &collection{
			keys: []string{"name", "arguments"}, values: []value{name, arguments},
		}}
	}
	return out, nil
}

func toolArguments(v value) (value, error) {
	if v.kind == kindString {
		d := &decoder{s: v.text}
		parsed, err := d.document()
		if unsupported := (*UnsupportedError)(nil); errors.As(err, &unsupported) {
			return value{}, err
		}
		if d.surrogate {
			return value{}, invalid("a string holds a lone surrogate")
		}
		if err == nil {
			v = parsed
		}
	}
	if v.kind == kindObject {
		return v, nil
	}
	return value{kind: kindObject, c: &collection{}}, nil
}
