package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestVerifyPaused has the snapshot of a paused container tried. It stays paused.
func TestVerifyPaused(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "verify/" + id + ":1"
	forget(t, a, ref)
	startImage(t, a, shared.image, id, nil, "workload", "count", "--memory", "4")
	await(t, a, id)
	must(t, a.Ctr(t.Context(), "tasks", "pause", id))
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--verify", "--leave-running"))
	noTrial(t, a)
	if _, status, err := a.Task(t.Context(), id); err != nil || status != "PAUSED" {
		t.Errorf("a paused container is %s, %v", status, err)
	}
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	counts(t, a, id)
}

// TestVerifyVolumes has a snapshot tried whose processes have files of bind mounts open: for writing, deleted, growing, and locked. The trial writes to none of them, and
// takes none away that a restore needs.
func TestVerifyVolumes(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "verify/" + id + ":1"
	forget(t, a, ref)
	data, file := filepath.Join(a.Dir, "volumes", id), filepath.Join(a.Dir, "volumes", id+".conf")
	if err := errors.Join(os.MkdirAll(data, 0o750), os.WriteFile(file, []byte("x"), 0o640)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(os.RemoveAll(data), os.Remove(file)) })
	startImage(t, a, shared.image, id, []string{"--mount", "type=bind,src=" + data + ",dst=/data,options=rbind:rw", "--mount", "type=bind,src=" + file + ",dst=/etc/x.conf,options=rbind:ro"},
		"workload", "files", "--dir", "/data", "--lock")
	before := await(t, a, id)
	must(t, a.Ctr(t.Context(), "tasks", "pause", id)) // nothing changes but by the trial
	tree := func() (found []string) {
		t.Helper()
		for path, info := range files(t, data) {
			found = append(found, fmt.Sprint(path, info.Size(), info.Mode(), info.ModTime(), info.Sys().(*syscall.Stat_t).Ino))
		}
		slices.Sort(found)
		return found
	}
	was := tree()
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--verify", "--leave-running", "--file-locks"))
	if is := tree(); !slices.Equal(was, is) {
		t.Errorf("the volume has changed, from\n%s\nto\n%s", strings.Join(was, "\n"), strings.Join(is, "\n"))
	}
	must(t, a.Ctr(t.Context(), "tasks", "resume", id))
	await(t, a, id)
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--verify", "--file-locks"))
	noTrial(t, a)
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "restore", ref, "--allow", "mounts"))
	goneOn(t, before, await(t, a, id))
}

// files returns what is below a directory, by path.
func files(t *testing.T, dir string) map[string]os.FileInfo {
	t.Helper()
	found := map[string]os.FileInfo{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		found[path] = info
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestVerifyRefused tries snapshots that cannot be restored: one of which a byte in the store changes before it is tried, and one that CRIU refuses. The containers run on, and there is
// no snapshot. What cannot be tried is refused before the freeze.
func TestVerifyRefused(t *testing.T) {
	bin := t.TempDir()
	program, fails := filepath.Join(bin, "criu"), filepath.Join(bin, "fails")
	script := fmt.Sprintf("#!/bin/sh\nif [ -e %s ] && grep -qz '^restore$' /proc/$PPID/cmdline; then exit 1; fi\nexec %s \"$@\"\n", fails, shared.lab.CRIU())
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, "verify", lab.HostOptions{CryoConfig: fmt.Sprintf("criu = %q\n[dump]\nverify = true\n", program)})
	id, ref := name(t), "verify/refused:1"
	start(t, h, id, nil, "workload", "count", "--memory", "16")
	before := await(t, h, id)
	runsOn := func(r lab.Result, code int, words string) {
		t.Helper()
		refusal(t, r, code, words)
		if out := must(t, h.Cryo(t.Context(), "ls")).Stdout; strings.Contains(out, "refused") {
			t.Errorf("there is a snapshot:\n%s", out)
		}
		noTrial(t, h)
		goneOn(t, before, await(t, h, id))
		counts(t, h, id)
	}

	r := lab.Follow(h.Command(t.Context(), "cryo", "checkpoint", id, ref), func() {
		restorer := find(t, h, called("cryo-restore"))
		if restorer == 0 {
			t.Error("nothing is tried")
			return
		}
		_ = unix.Kill(restorer, unix.SIGSTOP)
		change(t, largest(t, filepath.Join(h.CryoRoot(), "store/blobs/sha256/*")))
		_ = unix.Kill(restorer, unix.SIGCONT)
	})
	runsOn(r, codeDamaged, "the snapshot was tried and could not be restored")

	if err := os.WriteFile(fails, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runsOn(h.Cryo(t.Context(), "checkpoint", id, ref), codeAborted, "the snapshot was tried and could not be restored")
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running")) // the configuration has those tried that end
	must(t, h.Cryo(t.Context(), "rm", ref))

	for rule, flags := range map[string][]string{
		"verify-namespace": {"--net-host"},
		"verify-mount":     {"--mount", "type=bind,src=/dev/null,dst=/mnt,options=rbind:ro"},
	} {
		other := name(t)
		start(t, h, other, flags, "workload", "count", "--memory", "4")
		refused(t, h, codePrecondition, rule+": ", "checkpoint", other, ref, "--verify", "--leave-running")
		counts(t, h, other)
	}
	runsOn(h.Cryo(t.Context(), "checkpoint", id, ref, "--ext-unix-sk"), codePrecondition, "verify-socket: ")
	little := filepath.Join(bin, "meminfo")
	if err := os.WriteFile(little, []byte("MemTotal:       64000 kB\nMemFree:        8000 kB\nMemAvailable:   8000 kB\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, h.Run(t.Context(), "mount", "--bind", little, "/proc/meminfo")) // the host's own
	runsOn(h.Cryo(t.Context(), "checkpoint", id, ref), codePrecondition, "verify-memory: ")
	must(t, h.Run(t.Context(), "umount", "/proc/meminfo"))
	must(t, h.Cryo(t.Context(), "checkpoint", id, ref, "--verify=false"))
}

// change changes a byte in the middle of a file.
func change(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, flip(content, len(content)/2), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestVerifyKilled ends, while CRIU restores in a trial, each process that takes part in it. The container runs on, it has no snapshot, and nothing is left of the trial.
// Where only containerd is restarted, the trial goes on.
func TestVerifyKilled(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	ref := "verify/" + id + ":1"
	forget(t, a, ref)
	startImage(t, a, shared.image, id, nil, "workload", "count", "--memory", "64")
	await(t, a, id)
	before := trace(t, a)
	for _, test := range []struct {
		who    string
		signal unix.Signal
		code   int // of the command
	}{
		{"cryo", unix.SIGKILL, codeKilled},
		{"cryo", unix.SIGINT, codeInterrupted},
		{"cryo-restore", unix.SIGKILL, codeUnavailable},
		{"criu", unix.SIGKILL, codeAborted},
		{"shim", unix.SIGKILL, codeAborted},
		{"containerd", unix.SIGTERM, 0},
	} {
		t.Run(test.who+"/"+test.signal.String(), func(t *testing.T) {
			c := a.Command(t.Context(), "cryo", "checkpoint", id, ref, "--verify")
			r := lab.Follow(c, func() {
				restorer := 0
				for began := time.Now(); restorer == 0 && time.Since(began) < 30*time.Second; { // the dump takes its time on a busy machine
					restorer = find(t, a, called("cryo-restore"))
				}
				criu := find(t, a, func(p process) bool { return restorer != 0 && dumping(a)(p) })
				if criu == 0 {
					t.Error("nothing is tried")
					return
				}
				_ = unix.Kill(criu, unix.SIGSTOP)
				defer func() { _ = unix.Kill(criu, unix.SIGCONT) }()
				time.Sleep(50 * time.Millisecond)
				victims := map[string]int{"cryo": c.Process.Pid, "cryo-restore": restorer, "criu": criu, "shim": find(t, a, runsShim("cryo-verify-"))}
				if test.who == "containerd" {
					if err := a.StopDaemon(test.signal); err != nil {
						t.Error(err)
					}
					if err := a.StartDaemon(t.Context()); err != nil {
						t.Error(err)
					}
					return
				}
				if victims[test.who] == 0 {
					t.Errorf("there is no %s", test.who)
					return
				}
				if err := unix.Kill(victims[test.who], test.signal); err != nil {
					t.Error(err)
				}
				if test.signal == unix.SIGINT {
					time.Sleep(200 * time.Millisecond)
				}
			})
			if r.Code != test.code {
				t.Errorf("exit code %d, want %d", r.Code, test.code)
			}
			t.Logf("after %s: %s", r.Elapsed, r.Stderr)
			swept(t, a)
			if out := must(t, a.Cryo(t.Context(), "ls")).Stdout; strings.Contains(out, ref) != (r.Code == 0) {
				t.Errorf("snapshots:\n%s", out)
			}
			if r.Code != 0 {
				counts(t, a, id)
			}
			if r.Code == codeKilled {
				next(t, a)
			}
			eventually(t, "removing the trial", 30*time.Second, func() bool {
				left, err := os.ReadDir(filepath.Join(a.CryoRoot(), "work"))
				out := a.Ctr(t.Context(), "containers", "ls", "-q").Stdout + a.Ctr(t.Context(), "tasks", "ls", "-q").Stdout
				return err == nil && len(left) == 0 && !strings.Contains(out, "cryo-verify-")
			})
			switch r.Code {
			case 0:
			case codeKilled: // blobs of a killed command go with the next snapshot that is removed
				wantTrace(t, a, before, "blob ")
				must(t, a.Cryo(t.Context(), "prune"))
				wantTrace(t, a, before)
			default:
				wantTrace(t, a, before)
			}
		})
	}
}
