package worker

import (
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// TestSetEnvironment sets variables of a specification, of which a copy keeps the old ones.
func TestSetEnvironment(t *testing.T) {
	s := specs.Spec{Process: &specs.Process{Env: []string{"A=1", "AB=2", "C"}}}
	old := s
	SetEnvironment(&s, []string{"A=3", "D=4", "D=5="})
	if want := []string{"AB=2", "C", "A=3", "D=5="}; !slices.Equal(s.Process.Env, want) {
		t.Errorf("%q, want %q", s.Process.Env, want)
	}
	if want := []string{"A=1", "AB=2", "C"}; !slices.Equal(old.Process.Env, want) {
		t.Errorf("the copy has %q", old.Process.Env)
	}
	empty := specs.Spec{}
	SetEnvironment(&empty, []string{"A=1"})
	if empty.Process != nil {
		t.Error("a specification without a process has one")
	}
}

func TestParseVariable(t *testing.T) {
	for text, ok := range map[string]bool{"A=": true, "A=b=c": true, "A": false, "=b": false, "": false, "A=\x00": false, "CRYO_CONTROL_DIR=/run": false, "SNAPSHOT_CONTROL_DIR=/run": false} {
		if err := ParseVariable(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
