package tokenize

import "fmt"

// Reasons of an [UnsupportedError]. The set is closed, so that a reason can be
// a metric's label.
const (
	ReasonTemplate     = "template"               // the model's or the request's chat template is not followed
	ReasonTemplateArgs = "chat_template_kwargs"   // keywords that reach the template or the renderer in ways not followed
	ReasonContent      = "content"                // a content part other than text
	ReasonImages       = "images"                 // image, audio or video content
	ReasonTools        = "tools"                  // a tool definition or call that is not followed
	ReasonBatch        = "batch"                  // several prompts in one request
	ReasonEmbeds       = "prompt_embeds"          // a prompt given as embeddings
	ReasonTruncate     = "truncate_prompt_tokens" // a truncation that depends on the engine's context length
	ReasonReuse        = "kv_transfer_params"     // ids handed over by another engine
	ReasonEncoding     = "encoding"               // a body in another encoding than UTF-8
	ReasonSize         = "size"                   // too deeply nested, or too many JSON values
)

// Reasons lists every reason that an [UnsupportedError] can carry.
func Reasons() []string {
	return []string{
		ReasonTemplate, ReasonTemplateArgs, ReasonContent, ReasonImages, ReasonTools, ReasonBatch, ReasonEmbeds,
		ReasonTruncate, ReasonReuse, ReasonEncoding, ReasonSize,
	}
}

// UnsupportedError reports a request that the engine may well accept but whose
// tokens this package does not follow.
type UnsupportedError struct {
	// Reason is one of the Reason constants.
	Reason string
	// Detail says what was met, for people; never a prompt's text. May be empty.
	Detail string
}

func (e *UnsupportedError) Error() string {
	if e.Detail == "" {
		return "request is not followed: " + e.Reason
	}
	return "request is not followed: " + e.Reason + ": " + e.Detail
}

// InvalidError reports a request that the engine refuses.
type InvalidError struct {
	// Detail says what is wrong, for people; never a prompt's text.
	Detail string
}

func (e *InvalidError) Error() string { return "invalid request: " + e.Detail }

func unsupported(reason, format string, args ...any) error {
	return &UnsupportedError{Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return &InvalidError{Detail: fmt.Sprintf(format, args...)}
}
