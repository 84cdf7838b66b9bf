package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// last is what stands on the terminal.
func last(out *bytes.Buffer) string {
	return out.String()[strings.LastIndex(out.String(), "\033[K")+3:]
}

// What is under way at once stands side by side; what has ended goes, and what does not move says what it waits for.
func TestProgressSideBySide(t *testing.T) {
	var out bytes.Buffer
	var p progress
	defer p.stop()
	reason := "segments"
	p.waitsFor("push", func() string { return reason })
	now := time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	p.draw(&out, "dump", 0, 0, at(0))
	p.draw(&out, "push", 0, 0, at(0))
	p.draw(&out, "dump", 100<<20, 0, at(1))
	if want := "dump 100.0 MiB  100.0 MiB/s   push 0 B  waits for segments"; last(&out) != want {
		t.Errorf("drawn %q, want %q", last(&out), want)
	}
	p.draw(&out, "push", 50<<20, 0, at(2))
	if want := "dump 100.0 MiB  50.0 MiB/s   push 50.0 MiB  25.0 MiB/s"; last(&out) != want {
		t.Errorf("drawn %q, want %q", last(&out), want)
	}
	p.over("dump")
	p.draw(&out, "push", 60<<20, 100<<20, at(3))
	p.draw(&out, "push", 55<<20, 100<<20, at(4)) // overtaken
	if want := "push  60 %  60.0 MiB of 100.0 MiB  waits for segments"; last(&out) != want {
		t.Errorf("drawn %q, want %q", last(&out), want)
	}
	reason = "the registry"
	p.mu.Lock()
	p.paint(&out, at(9))
	p.mu.Unlock()
	if want := "push  60 %  60.0 MiB of 100.0 MiB  waits for the registry"; last(&out) != want {
		t.Errorf("drawn %q, want %q", last(&out), want)
	}
	p.draw(&out, "push", 100<<20, 100<<20, at(10))
	if want := "push 100 %  100.0 MiB of 100.0 MiB  10.0 MiB/s"; last(&out) != want {
		t.Errorf("drawn %q, want %q", last(&out), want)
	}
}

// Programs get a line for each change of each activity, its end, and why it does not move.
func TestProgressJSON(t *testing.T) {
	var out bytes.Buffer
	p := progress{json: true}
	defer p.stop()
	p.waitsFor("pull", func() string { return "the registry" })
	now := time.Now()
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	p.draw(&out, "pull", 0, 100, at(0))
	p.draw(&out, "pull", 10, 100, at(1))
	p.draw(&out, "unpack", 5, 5, at(3))
	p.draw(&out, "pull", 100, 100, at(4))
	p.draw(&out, "pull", 100, 100, at(5))
	p.clear()
	want := `{"activity":"pull","bytesDone":0,"bytesTotal":100}
{"activity":"pull","bytesDone":10,"bytesTotal":100}
{"activity":"pull","bytesDone":10,"bytesTotal":100,"waitsFor":"the registry"}
{"activity":"unpack","bytesDone":5,"bytesTotal":5,"ended":true}
{"activity":"pull","bytesDone":100,"bytesTotal":100,"ended":true}
`
	if out.String() != want {
		t.Errorf("it tells\n%s, want\n%s", out.String(), want)
	}
}
