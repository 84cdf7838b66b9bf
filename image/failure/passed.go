package failure

import (
	"slices"
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

// Passed reads what [Text] has written, from an error of containerd's client, whose kind it keeps. containerd puts its own words before the text, and the kind after it. On the way the
// text may also have got the names of kinds as lines of their own, which tell a user nothing.
func Passed(err error) *Error {
	text := err.Error()
	if kind := errdefs.Resolve(err); kind != nil {
		text = strings.TrimSuffix(text, ": "+kind.Error())
	}
	text, hint, _ := strings.Cut(text, hintLine)
	message, rule, _ := strings.Cut(text, ruleLine)
	if strings.ContainsAny(rule, " \n") {
		message, rule = text, "" // rules are words
	}
	lines := strings.Split(strings.ReplaceAll(message, "rpc error: code = Unknown desc = ", ""), "\n")
	message = strings.Join(append(lines[:1:1], withoutKinds(lines[1:])...), "\n")
	hint = strings.TrimSpace(strings.Join(withoutKinds(strings.Split(hint, "\n")), "\n"))
	return &Error{Kind: kindName(err), Message: message, Advice: hint, Rule: rule, cause: err}
}

// withoutKinds returns the lines that are not the name of a kind.
func withoutKinds(lines []string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		for _, kind := range kinds {
			if kind.Error() == strings.TrimSpace(line) {
				return true
			}
		}
		return false
	})
}
