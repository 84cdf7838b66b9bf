package criu

import (
	"os"
	"os/exec"
	"path/filepath"

	gorunc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// cacheDir is where CRIU keeps what it has found out about the kernel, until the host is started again: only in memory. Source: CRIU 4.2, criu/kerndat.c.
const cacheDir = "/run"

// Cache has the CRIU at path find out about the kernel, where it has not since the host was started, and keep it: that takes it 25 ms, and one that restores
// can write nothing there (package guard). It is begun, and not waited for; done is closed at its end.
func Cache(path string) (done <-chan struct{}) { return cache(path, cacheDir) }

func cache(path, dir string) <-chan struct{} {
	done := make(chan struct{})
	var fs unix.Statfs_t
	_, err := os.Lstat(filepath.Join(dir, "criu.kdat"))
	if err == nil || unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC {
		close(done)
		return done
	}
	log.L.WithFields(log.Fields{"program": path, "args": []string{"check", "--feature", "uffd"}}).Debug("start a process")
	cmd := exec.Command(path, "check", "--feature", "uffd")
	exited, err := gorunc.Monitor.Start(cmd)
	if err != nil { // a restore says why
		close(done)
		return done
	}
	go func() {
		defer close(done)
		_, _ = gorunc.Monitor.Wait(cmd, exited) // without it, restores take longer
	}()
	return done
}
