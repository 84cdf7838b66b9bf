package trust_test

import (
	"testing"

	"github.com/cryo-project/cryo/image/trust"
)

// TestPattern matches, and compiles nothing before.
func TestPattern(t *testing.T) {
	p := trust.NewPattern(`^a+`)
	if !p.MatchString("aab") || p.MatchString("b") || p.FindString("aab") != "aa" {
		t.Error("it matches something else")
	}
	never := trust.NewPattern(`(`)
	defer func() {
		if recover() == nil {
			t.Error("what is no expression matches")
		}
	}()
	never.MatchString("")
}
