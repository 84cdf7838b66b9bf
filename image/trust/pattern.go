package trust

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression.
type Pattern struct{ compiled func() *regexp.Regexp }

// NewPattern returns the pattern of an expression. The first use of an expression that is not valid panics.
func NewPattern(expression string) Pattern {
	return Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// MatchString is that of [regexp.Regexp].
func (p Pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindString is that of [regexp.Regexp].
func (p Pattern) FindString(s string) string { return p.compiled().FindString(s) }
