package simulator

import (
	"math"
	"strconv"
	"strings"
)

// integer is a Python int of any size.
type integer struct {
	n    int64  // clamped to the range of int64
	text string // as Python prints it
}

func newInteger(n int64) integer { return integer{n, strconv.FormatInt(n, 10)} }

// fields reads the members of a body as pydantic does in lax mode and collects what does not fit. A member that is
// missing or null counts as unset.
type fields struct {
	obj    object
	faults faults
}

func (f *fields) get(name string) (value, bool) {
	m, ok := f.obj.members[name]
	return m.value, ok && m.kind != kindNull
}

func (f *fields) refuse(typ, loc, msg string, v value, ctx string) {
	f.faults.add(fieldError{typ, "body." + loc, msg, v.input(), ctx})
}

// integer reads an int.
func (f *fields) integer(name string) (integer, bool) {
	v, ok := f.get(name)
	if !ok {
		return integer{}, false
	}
	return f.integerAt(name, v)
}

func (f *fields) integerAt(loc string, v value) (integer, bool) {
	n, typ, msg := toInteger(v)
	if typ != "" {
		f.refuse(typ, loc, msg, v, "")
		return integer{}, false
	}
	return n, true
}

// toInteger converts a value as pydantic's int does; a non-empty type is the error.
func toInteger(v value) (n integer, typ, msg string) {
	switch v.kind {
	case kindInt:
		return parseInteger(string(v.raw)), "", ""
	case kindBool:
		if v.raw[0] == 't' {
			return newInteger(1), "", ""
		}
		return newInteger(0), "", ""
	case kindFloat:
		x := v.float()
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return n, "finite_number", "Input should be a finite number"
		}
		if x != math.Trunc(x) {
			return n, "int_from_float", "Input should be a valid integer, got a number with a fractional part"
		}
		return parseInteger(strconv.FormatFloat(x, 'f', 0, 64)), "", ""
	case kindString:
		s := strings.TrimSpace(decodeString(v.raw))
		if isDecimal(s) {
			return parseInteger(s), "", ""
		}
		return n, "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
	default:
		return n, "int_type", "Input should be a valid integer"
	}
}

func isDecimal(s string) bool {
	s = strings.TrimLeft(s, "+-")
	return len(s) > 0 && len(s) <= maxIntDigits && strings.Trim(s, "0123456789") == ""
}

// parseInteger reads decimal digits; beyond int64 the number is clamped and its text kept.
func parseInteger(s string) integer {
	s = strings.TrimPrefix(s, "+")
	n, _ := strconv.ParseInt(s, 10, 64) // clamps
	if len(s) < 19 {
		return newInteger(n)
	}
	return integer{n, s}
}

// number reads a float.
func (f *fields) number(name string, unset float64) float64 {
	v, ok := f.get(name)
	if !ok {
		return unset
	}
	switch v.kind {
	case kindInt, kindFloat:
		return v.float()
	case kindBool:
		n, _, _ := toInteger(v)
		return float64(n.n)
	case kindString:
		if x, err := strconv.ParseFloat(strings.TrimSpace(decodeString(v.raw)), 64); err == nil {
			return x
		}
		f.refuse("float_parsing", name, "Input should be a valid number, unable to parse string as a number", v, "")
	default:
		f.refuse("float_type", name, "Input should be a valid number", v, "")
	}
	return unset
}

// boolean reads a bool; unset is false.
func (f *fields) boolean(name string) bool {
	v, ok := f.get(name)
	return ok && f.booleanAt(name, v)
}

func (f *fields) booleanAt(loc string, v value) bool {
	text := ""
	switch v.kind {
	case kindNull:
		return false
	case kindBool, kindInt:
		text = string(v.raw)
	case kindFloat:
		text = strings.TrimSuffix(pyFloat(v.float()), ".0")
	case kindString:
		text = strings.ToLower(decodeString(v.raw))
	default:
		f.refuse("bool_type", loc, "Input should be a valid boolean", v, "")
		return false
	}
	switch text {
	case "true", "1", "on", "t", "y", "yes":
		return true
	case "false", "0", "off", "f", "n", "no":
		return false
	}
	f.refuse("bool_parsing", loc, "Input should be a valid boolean, unable to interpret input", v, "")
	return false
}

// str reads a string; empty if there is none.
func (f *fields) str(name string) string {
	v, ok := f.get(name)
	if !ok {
		return ""
	}
	if v.kind != kindString {
		f.refuse("string_type", name, "Input should be a valid string", v, "")
		return ""
	}
	return decodeString(v.raw)
}

// seed reads the seed, an int of 64 bits.
func (f *fields) seed() (int64, bool) {
	n, ok := f.integer("seed")
	if !ok {
		return 0, false
	}
	v, _ := f.get("seed")
	if n.text == strconv.FormatInt(n.n, 10) {
		return n.n, true
	}
	if n.n > 0 {
		f.refuse("less_than_equal", "seed", "Input should be less than or equal to 9223372036854775807", v,
			"{'le': 9223372036854775807}")
	} else {
		f.refuse("greater_than_equal", "seed", "Input should be greater than or equal to -9223372036854775808", v,
			"{'ge': -9223372036854775808}")
	}
	return 0, false
}

// maxStops is how many stop strings a request may have.
const maxStops = 4

// stops reads stop: a string or a list of at most four.
func (f *fields) stops() []string {
	v, ok := f.get("stop")
	if !ok {
		return nil
	}
	if v.kind == kindString {
		return []string{decodeString(v.raw)}
	}
	var out []string
	var wrong faults
	wrong.add(fieldError{"string_type", "body.stop", "Input should be a valid string", v.input(), ""})
	switch {
	case v.kind != kindList:
		wrong.add(fieldError{"list_type", "body.stop", "Input should be a valid list", v.input(), ""})
	case v.n > maxStops:
		n := strconv.Itoa(v.n)
		wrong.add(fieldError{
			"too_long", "body.stop", "List should have at most 4 items after validation, not " + n, v.input(),
			"{'field_type': 'List', 'max_length': 4, 'actual_length': " + n + "}",
		})
	default:
		v.items(func(item value) bool {
			if item.kind != kindString {
				wrong.add(fieldError{
					"string_type", "body.stop." + strconv.Itoa(len(out)), "Input should be a valid string", item.input(), "",
				})
			} else {
				out = append(out, decodeString(item.raw))
			}
			return true
		})
	}
	if wrong.n > 1 {
		for _, e := range wrong.first {
			f.faults.add(e)
		}
	}
	return out
}

// tokenIDs reads a list of ints, such as stop_token_ids.
func (f *fields) tokenIDs(name string) []uint32 {
	v, ok := f.get(name)
	if !ok {
		return nil
	}
	if v.kind != kindList {
		f.refuse("list_type", name, "Input should be a valid list", v, "")
		return nil
	}
	out := make([]uint32, 0, v.n)
	i := 0
	v.items(func(item value) bool {
		if n, ok := f.integerAt(name+"."+strconv.Itoa(i), item); ok && n.n >= 0 && n.n <= math.MaxUint32 {
			out = append(out, uint32(n.n))
		}
		i++
		return true
	})
	return out
}

// literal reads a string out of a fixed set.
func (f *fields) literal(name, expected string, allowed ...string) {
	v, ok := f.get(name)
	if !ok {
		return
	}
	if v.kind == kindString {
		s := decodeString(v.raw)
		for _, a := range allowed {
			if s == a {
				return
			}
		}
	}
	f.refuse("literal_error", name, "Input should be "+expected, v, "{'expected': "+pyRepr(expected)+"}")
}
