package trust

import (
	"strings"
	"unicode"
)

// Hidden reports whether a character makes a reader see something else than there is: control characters, those that change the direction of text,
// and those that end a line. Source: Unicode 15, Bidi_Control, Zl and Zp; https://trojansource.codes.
func Hidden(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Lines makes text of several lines, of which a snapshot may have made some, fit to be shown: those after the first are indented, so that none looks like
// a line of ours, and what else is hidden becomes '?'.
func Lines(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	for i, line := range lines {
		lines[i] = OneLine(line)
		if i > 0 && !strings.HasPrefix(line, "  ") {
			lines[i] = "  " + lines[i]
		}
	}
	return strings.Join(lines, "\n")
}

// OneLine makes text of a snapshot fit to be shown beside ours: what is hidden becomes '?'.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if Hidden(r) {
			return '?'
		}
		return r
	}, s)
}
