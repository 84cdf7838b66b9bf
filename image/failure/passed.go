package failure

import (
	"strings"

	"github.com/containerd/errdefs"
)

// containerd passes on nothing of a shim's error but its kind and text. These begin the lines of the text that follow the message.
const (
	ruleLine = "\nrule: "
	hintLine = "\nhint: "
)

// Text returns an error as text for containerd: message, then a line with the rule and, last, the hint. Rule and hint may be empty. No line of message begins as theirs do.
func Text(message, rule, hint string) string {
	if rule != "" {
		message += ruleLine + rule
	}
	if hint != "" {
		message += hintLine + hint
	}
	return message
}

// Passed reads what [Text] has written, from an error of containerd's client. containerd puts its own words before the text, and the kind after it.
func Passed(err error) (message, rule, hint string) {
	text := err.Error()
	if kind := errdefs.Resolve(err); kind != nil {
		text = strings.TrimSuffix(text, ": "+kind.Error())
	}
	text, hint, _ = strings.Cut(text, hintLine)
	if message, rule, _ = strings.Cut(text, ruleLine); strings.ContainsAny(rule, " \n") {
		message, rule = text, "" // rules are words
	}
	return message, rule, hint
}
