// Package pattern compiles regular expressions when they are first asked for. A restore starts the shim's program a dozen times, as a wrapper of CRIU and as tar among others, and most
// of these processes match nothing.
package pattern

import (
	"regexp"
	"sync"
)

// Pattern is a regular expression.
type Pattern struct{ compiled func() *regexp.Regexp }

// New returns the pattern of an expression. The first use of an expression that is not valid panics.
func New(expression string) Pattern {
	return Pattern{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })}
}

// MatchString is that of [regexp.Regexp].
func (p Pattern) MatchString(s string) bool { return p.compiled().MatchString(s) }

// FindString is that of [regexp.Regexp].
func (p Pattern) FindString(s string) string { return p.compiled().FindString(s) }
