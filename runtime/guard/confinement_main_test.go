package guard

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// TestComplain has an error that CRIU itself never comes to write: it is found where CRIU's are.
func TestComplain(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	complain(fd, errors.New("confine CRIU: no room"))
	if reason := criu.Reason(filepath.Join(dir, "restore.log")); reason != "confine CRIU: no room (confinement)" {
		t.Errorf("the reason is %q", reason)
	}
}
