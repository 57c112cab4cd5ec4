package simulator

import (
	"math"
	"slices"
	"strconv"
)

// check are the checks of vLLM's SamplingParams._verify_args, in its order (sampling_params.py).
func (p *params) check(maxTokens integer) error {
	switch {
	case p.n.n < 1:
		return badRequest("n must be at least 1, got " + p.n.text + ".")
	case !within(p.presence, -2, 2):
		return badRequest("presence_penalty must be in [-2, 2], got " + pyFloat(p.presence) + ".")
	case !within(p.frequency, -2, 2):
		return badRequest("frequency_penalty must be in [-2, 2], got " + pyFloat(p.frequency) + ".")
	case !(p.repetition > 0):
		return badRequest("repetition_penalty must be greater than zero, got " + pyFloat(p.repetition) + ".")
	}
	if err := p.checkTemperature(); err != nil {
		return err
	}
	switch {
	case !(p.topP > 0 && p.topP <= 1):
		return badValue("top_p must be in (0, 1], got "+pyFloat(p.topP)+".", "top_p", pyFloat(p.topP))
	case p.topK.n < -1:
		return badRequest("top_k must be 0 (disable), or at least 1, got " + p.topK.text + ".")
	case !within(p.minP, 0, 1):
		return badRequest("min_p must be in [0, 1], got " + pyFloat(p.minP) + ".")
	case maxTokens.n < 1 && !p.promptOnly():
		return badValue("max_tokens must be at least 1, got "+maxTokens.text+".", "max_tokens", maxTokens.text)
	case p.minTokens.n < 0:
		return badRequest("min_tokens must be greater than or equal to 0, got " + p.minTokens.text + ".")
	case p.minTokens.n > max(maxTokens.n, 1):
		return badRequest("min_tokens must be less than or equal to max_tokens=" + maxTokens.text + ", got " +
			p.minTokens.text + ".")
	case slices.Contains(p.stop, ""):
		return badRequest("stop cannot contain an empty string.")
	case p.temperature == 0 && p.n.n > 1:
		return badRequest("n must be 1 when using greedy sampling, got " + p.n.text + ".")
	}
	return nil
}

func (p *params) checkTemperature() error {
	t, text := p.temperature, pyFloat(p.temperature)
	switch {
	case math.IsNaN(t) || math.IsInf(t, 0):
		return badValue("temperature must be a finite number, got "+text+".", "temperature", text)
	case t < 0:
		return badValue("temperature must be non-negative, got "+text+".", "temperature", text)
	case t > 2:
		return badValue("temperature must be in [0, 2], got "+text+".", "temperature", text)
	}
	return nil
}

func within(x, low, high float64) bool { return x >= low && x <= high }

// promptOnly says that a completion asks for its own prompt back and nothing else; one token is computed all the same.
func (p *params) promptOnly() bool { return p.echo && p.hasMax && p.maxTokens.n == 0 }

// outputLimit is how many tokens a prompt may be answered with. A maximum that does not fit beside the prompt is cut;
// only one that no prompt could leave room for is refused (entrypoints/utils.py, get_max_tokens).
func (p *params) outputLimit(prompt, maxModelLen int) (integer, error) {
	room := newInteger(int64(maxModelLen - prompt))
	if !p.hasMax {
		return room, nil
	}
	if p.maxTokens.n > int64(maxModelLen) {
		return integer{}, badValue("max_tokens="+p.maxTokens.text+" cannot be greater than max_model_len="+
			strconv.Itoa(maxModelLen)+". Please request fewer output tokens.", "max_tokens", p.maxTokens.text)
	}
	if p.maxTokens.n > room.n {
		return room, nil
	}
	return p.maxTokens, nil
}
