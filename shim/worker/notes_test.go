package worker

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNotes(t *testing.T) {
	bundle := t.TempDir()
	if m, err := ReadMemoryNote(bundle); m != nil || err != nil {
		t.Errorf("nothing noted: %v, %v", m, err)
	}
	for _, want := range []MemoryNote{
		{Here: 1, Total: 4}, {Here: 1, Total: 4, Waiting: "the registry is away"}, {Here: 4, Total: 4}, {Here: 1, Total: 4, Lost: "its memory\ndid not come"},
	} {
		if err := want.Write(bundle); err != nil {
			t.Fatal(err)
		}
		if m, err := ReadMemoryNote(bundle); err != nil || m == nil || *m != want {
			t.Errorf("got %v, %v, want %v", m, err, want)
		}
	}
	if err := os.WriteFile(filepath.Join(bundle, noteFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := ReadMemoryNote(bundle); err == nil {
		t.Errorf("half a note gives %v", m)
	}
}
