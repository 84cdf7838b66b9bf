package criu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSaid asks a program once, and again when it has changed, when it is asked something else, and after an error.
func TestSaid(t *testing.T) {
	dir, program := filepath.Join(t.TempDir(), "said"), filepath.Join(t.TempDir(), "program")
	write := func(text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(program+".new", []byte(text), 0o700), os.Rename(program+".new", program)); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	var failure error
	ask := func() (string, error) {
		asked++
		return "4.2", failure
	}
	write("one")
	for n, test := range []struct {
		args   []string
		change bool
		err    error
		asked  int
	}{
		{[]string{"--version"}, false, errors.New("killed"), 1},
		{[]string{"--version"}, false, nil, 2},
		{[]string{"--version"}, false, nil, 2},
		{[]string{"features"}, false, nil, 3},
		{[]string{"--version"}, true, nil, 4},
		{[]string{"--version"}, false, nil, 4},
	} {
		if test.change {
			write("another")
		}
		failure = test.err
		got, err := said(dir, program, test.args, ask)
		if asked != test.asked || !errors.Is(err, test.err) || got != "4.2" {
			t.Errorf("%d: %q, %v; asked %d times, want %d", n, got, err, asked, test.asked)
		}
	}
	if _, err := said(dir, program+"-none", nil, ask); err != nil || asked != 5 {
		t.Errorf("a program that is not there: %v, asked %d times", err, asked)
	}
}
