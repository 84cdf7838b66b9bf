package restorer

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReport: all but progress arrives, long news too, and the end of the command is heard.
func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReport(path); err == nil {
		t.Error("a report is opened that no command reads")
	}
	from, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := OpenReport(path)
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		r.Left()
		close(left)
	}()
	long := strings.Repeat("x", 200_000)
	go func() {
		for i := range 10_000 {
			r.Tell(News{Progress: &Progress{What: "a", Done: int64(i)}})
		}
		r.Tell(News{Log: long})
	}()
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var n News
		if err != nil || json.Unmarshal(line, &n) != nil {
			t.Fatalf("%.100q, %v", line, err)
		}
		if n.Log != "" {
			if n.Log != long {
				t.Errorf("%d bytes arrive", len(n.Log))
			}
			break
		}
	}
	select {
	case <-left:
		t.Error("the command has left, it says, which has not")
	case <-time.After(10 * time.Millisecond):
	}
	from.Close()
	<-left
	r.Tell(News{Log: "to nobody"})
	(*Report)(nil).Tell(News{})
}
