package restore

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// TestTerminalOutput writes to a terminal's output while the task's creator has its streams: all of it is there for the client that attaches.
func TestTerminalOutput(t *testing.T) {
	dir := t.TempDir()
	streams, err := terminalIO(dir)("a")
	if err != nil {
		t.Fatal(err)
	}
	config := streams.Config()
	if !config.Terminal || config.Stderr != "" {
		t.Errorf("the streams are %+v", config)
	}
	for _, path := range []string{config.Stdin, config.Stdout} {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 100 {
			if _, err := f.Write([]byte{byte(n)}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // for a reader that should not be
		}
		b := make([]byte, 200)
		if err := f.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if n, err := f.Read(b); n != 100 {
			t.Errorf("%s: %d of 100 bytes are there (%v)", filepath.Base(path), n, err)
		}
		f.Close()
	}
	streams.Cancel()
	streams.Wait()
	if err := streams.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v (%v)", left, err)
	}
}

// TestTaskIO has output go where the caller wants it.
func TestTaskIO(t *testing.T) {
	log := &url.URL{Scheme: "file", Path: "/log"}
	for name, c := range map[string]struct {
		terminal bool
		log      *url.URL
		want     cio.Config
	}{
		"none":           {false, nil, cio.Config{}},
		"log":            {false, log, cio.Config{Stdout: "file:///log", Stderr: "file:///log"}},
		"terminal's log": {true, log, cio.Config{Terminal: true, Stdout: "file:///log", Stderr: "file:///log"}},
	} {
		streams, err := taskIO(&specs.Spec{Process: &specs.Process{Terminal: c.terminal}}, c.log)("a")
		if err != nil {
			t.Fatal(err)
		}
		if got := streams.Config(); got != c.want {
			t.Errorf("%s: %+v, not %+v", name, got, c.want)
		}
	}
}
