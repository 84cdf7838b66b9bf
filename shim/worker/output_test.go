package worker

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// keep begins to keep output in a new bundle. It gives where to write it, the FIFO for who attaches, and what is closed at the end.
func keep(t *testing.T) (write *os.File, attached, bundle string, ended chan struct{}) {
	t.Helper()
	bundle = t.TempDir()
	attached = filepath.Join(bundle, "stdout")
	if err := unix.Mkfifo(attached, 0o600); err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended = make(chan struct{})
	go func() { KeepOutput(read, attached, bundle); close(ended) }()
	return write, attached, bundle, ended
}

func say(t *testing.T, to *os.File, text string) {
	t.Helper()
	if _, err := to.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// TestKeep keeps the last of a lot of output: at least the size of a file, and at most that of two.
func TestKeep(t *testing.T) {
	write, _, bundle, ended := keep(t)
	line := strings.Repeat("x", 99) + "\n"
	for range 5 * maxOutput / len(line) {
		say(t, write, line)
	}
	say(t, write, "the last\n")
	write.Close()
	<-ended
	all, latest, err := ReadOutput(bundle)
	if err != nil || len(all) < maxOutput || len(all) > 2*maxOutput || latest > maxOutput || !bytes.HasSuffix(all, []byte(line+"the last\n")) {
		t.Errorf("%d bytes, %d of them latest, %v", len(all), latest, err)
	}
}

// TestKeepNothing tells output that is kept, and empty, from none.
func TestKeepNothing(t *testing.T) {
	write, _, bundle, ended := keep(t)
	write.Close()
	<-ended
	if all, _, err := ReadOutput(bundle); len(all) != 0 || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	if _, _, err := ReadOutput(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of a bundle without output: %v", err)
	}
}

// TestKeepUnwritable has output for a bundle that is not there: it is left out, and the writer is not held up.
func TestKeepUnwritable(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { KeepOutput(read, "/nowhere/stdout", "/nowhere"); close(ended) }()
	for range 3 * maxOutput / 1000 { // more than the pipe holds, and than a file
		say(t, write, strings.Repeat("x", 1000))
	}
	write.Close()
	<-ended
}

// TestAttach reads as who attaches, twice; and attaches without reading, which delays output once.
func TestAttach(t *testing.T) {
	write, attached, bundle, ended := keep(t)
	for _, text := range []string{"one\n", "two\n"} {
		f, err := os.OpenFile(attached, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		say(t, write, text)
		got := make([]byte, 100)
		var n int
		for deadline := time.Now().Add(10 * time.Second); n == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			n, _ = f.Read(got) // the end, as long as nobody writes
		}
		if string(got[:n]) != text {
			t.Errorf("who attaches reads %q, want %q", got[:n], text)
		}
		f.Close()
	}
	idle, err := os.OpenFile(attached, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	begin := time.Now()
	for range 1000 {
		say(t, write, strings.Repeat("x", 999)+"\n")
	}
	write.Close()
	<-ended
	if took := time.Since(begin); took > 10*patience {
		t.Errorf("who does not read has held the container up for %s", took)
	}
	if all, _, err := ReadOutput(bundle); err != nil || len(all) != len("one\ntwo\n")+1000*1000 {
		t.Errorf("kept are %d bytes, %v", len(all), err)
	}
}
