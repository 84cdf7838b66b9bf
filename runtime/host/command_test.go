package host

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestCommandEndsItsChildren breaks off a program one of whose children stands still, and nobody will let it go on.
func TestCommandEndsItsChildren(t *testing.T) {
	note := filepath.Join(t.TempDir(), "child")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := Command(ctx, "sh", "-c", `sh -c 'echo $$ > "$1.new" && mv "$1.new" "$1" && kill -STOP $$' child "$1" & wait`, "sh", note)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	for deadline := time.Now().Add(30 * time.Second); child == 0 || state(child) != "T"; time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(note); err == nil {
			if child, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("child %d is %q", child, state(child))
		}
	}
	cancel()
	if cmd.Wait() == nil {
		t.Error("the program was not ended")
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if s := state(child); s == "" || s == "Z" { // gone, or for init to collect
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(child, syscall.SIGKILL)
			t.Fatalf("child %d is %q", child, state(child))
		}
	}
}

// state is that of a process in ps's letters; empty: it is gone.
func state(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}
