package runc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// TestEndHidden ends CRIU where it does not look like CRIU in its work directory: a child of runc that is about to become it, and one that is in the
// container's mount namespace.
func TestEndHidden(t *testing.T) {
	work := t.TempDir()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(sleep)
	criu := filepath.Join(t.TempDir(), "criu")
	if err == nil {
		err = os.WriteFile(criu, data, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(work, "dump.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	soon := exec.Command("sh", "-c", "sleep 0.3; exec "+criu+" 20", "runc", "checkpoint", "--work-path", work, "id")
	soon.Dir = work
	away := exec.Command(criu, "20")
	away.Dir, away.ExtraFiles = "/", []*os.File{log}
	other := exec.Command(criu, "20") // of another dump
	other.Dir = t.TempDir()
	ended := map[string]chan struct{}{}
	for name, cmd := range map[string]*exec.Cmd{"not CRIU yet": soon, "elsewhere": away, "another": other} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		ended[name] = done
		go func() {
			_ = cmd.Wait() // it is killed
			close(done)
		}()
		defer func() {
			_ = cmd.Process.Kill() // it may have ended
			<-done
		}()
	}
	if err := EndDump(work); err != nil {
		t.Fatal(err)
	}
	for name, done := range ended {
		select {
		case <-done:
			if name == "another" {
				t.Errorf("%s was ended", name)
			}
		case <-time.After(time.Second):
			if name != "another" {
				t.Errorf("%s goes on", name)
			}
		}
	}
}
