package runc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// TestCommand: the arguments of a dump.
func TestCommand(t *testing.T) {
	pages, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	c := Container{ID: "c", Runtime: &gorunc.Runc{Command: "true", Root: "/r", Log: "/l"}}
	for name, test := range map[string]struct {
		dump Dump
		want []string
	}{
		"runs on": {Dump{}, []string{"--leave-running"}},
		"ends":    {Dump{Exit: true}, nil},
		"after":   {Dump{Pages: pages, Parent: "../earlier", CgroupsMode: "soft"}, []string{"--leave-running", "--parent-path", "../earlier", "--manage-cgroups-mode", "soft"}},
	} {
		test.dump.Images, test.dump.Work = "/i", "/w"
		cmd, err := c.checkpointCommand(test.dump)
		if err != nil {
			t.Fatal(err)
		}
		want := slices.Concat([]string{"--root", "/r", "--log", "/l", "--log-format", "json", "checkpoint", "--image-path", "/i", "--work-path", "/w"}, test.want, []string{"c"})
		if got := cmd.Args[1:]; !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
		if test.dump.Pages != nil && (len(cmd.ExtraFiles) != PagesDescriptor-2 || cmd.ExtraFiles[PagesDescriptor-3] != pages) {
			t.Errorf("%s: descriptors %v", name, cmd.ExtraFiles)
		}
	}
}

// TestCancelFiles cancels a dump that goes to files while CRIU's code may be entering a process, where killing CRIU would make that crash: CRIU is waited for, unless it is
// to end the processes.
func TestCancelFiles(t *testing.T) {
	for name, test := range map[string]struct {
		exit, done bool
	}{"runs on": {done: true}, "ends": {exit: true}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := func(name, text string) string {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
					t.Fatal(err)
				}
				return path
			}
			criu := script("criu", "echo >began; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; echo >done\n")
			c := Container{ID: "c", Runtime: &gorunc.Runc{Command: script("runc", fmt.Sprintf("%s & wait $!\n", criu)), Log: filepath.Join(dir, "log")}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				for ; ; time.Sleep(time.Millisecond) {
					if _, err := os.Stat(filepath.Join(dir, "began")); err == nil {
						cancel()
						return
					}
				}
			}()
			err := c.dump(ctx, Dump{Work: dir, Images: dir, Exit: test.exit})
			_, missing := os.Stat(filepath.Join(dir, "done"))
			if (err == nil) != test.done || (missing == nil) != test.done {
				t.Errorf("%v, %v", err, missing)
			}
		})
	}
}

// TestStalledDump ends a dump that makes no progress, and lets one go on that does.
func TestStalledDump(t *testing.T) {
	for name, test := range map[string]struct {
		script  string
		stalled bool
	}{
		"waits": {"echo the last line >dump.log; exec sleep 20\n", true},
		"works": {"for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo $i >>dump.log; done\n", false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "runc")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+test.script), 0o700); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		c := Container{ID: "c", Runtime: &gorunc.Runc{Command: path, Log: filepath.Join(dir, "log")}}
		ended := make(chan error, 1)
		go func() {
			// What a killed CRIU leaves is a runc that exits; this one is both.
			ended <- c.dump(t.Context(), Dump{Work: dir, Images: dir, Exit: true, Patience: 400 * time.Millisecond})
		}()
		if test.stalled {
			time.Sleep(2 * time.Second) // five times its patience: the machine may be busy
			for _, pid := range descendants(os.Getpid()) {
				if where, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); where == dir {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		}
		err := <-ended
		if errors.Is(err, context.DeadlineExceeded) != test.stalled || test.stalled && !strings.Contains(err.Error(), "the last line") {
			t.Errorf("%s: %v after %s", name, err, time.Since(began))
		}
	}
}
