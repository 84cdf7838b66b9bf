package notes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestNotes(t *testing.T) {
	bundle := t.TempDir()
	if m, err := ReadMemory(bundle); m != nil || err != nil {
		t.Errorf("nothing noted: %v, %v", m, err)
	}
	if lost, err := ReadLost(bundle); lost != "" || err != nil {
		t.Errorf("nothing noted: %q, %v", lost, err)
	}
	for _, want := range []Memory{{Here: 1, Total: 4}, {Here: 1, Total: 4, Waiting: "the registry is away"}, {Here: 4, Total: 4}} {
		if err := want.Write(bundle); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadMemory(bundle); err != nil || m == nil || *m != want {
			t.Errorf("got %v, %v, want %v", m, err, want)
		}
	}
	if err := WriteLost(bundle, errors.New("its memory\ndid not come")); err != nil {
		t.Fatal(err)
	}
	if lost, err := ReadLost(bundle); lost != "its memory\ndid not come" || err != nil {
		t.Errorf("%q, %v", lost, err)
	}
	if err := os.WriteFile(filepath.Join(bundle, memoryFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMemory(bundle); err == nil {
		t.Errorf("half a note gives %v", m)
	}
}
