package criu

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestCache(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "criu")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(dir)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is not in memory")
	}
	program, called := filepath.Join(t.TempDir(), "criu"), filepath.Join(t.TempDir(), "called")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"$*\" >>"+called+"\ntouch "+dir+"/criu.kdat\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	<-cache(program, t.TempDir()) // on a disk CRIU keeps nothing
	if _, err := os.Stat(called); err == nil && unix.Statfs(t.TempDir(), &fs) == nil && fs.Type != unix.TMPFS_MAGIC {
		t.Error("CRIU is asked where it can keep nothing")
	}
	_ = os.Remove(called)
	for range 2 {
		<-cache(program, dir)
	}
	if data, err := os.ReadFile(called); err != nil || string(data) != "check --feature uffd\n" {
		t.Errorf("CRIU is called with %q (%v)", data, err)
	}
	<-cache(filepath.Join(dir, "absent"), dir)
}
