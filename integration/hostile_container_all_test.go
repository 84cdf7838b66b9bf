package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/lab"
)

// The tests whose names begin with TestHostile have containers that make their own checkpoints, or their restores, hard. What they do is in their comments and cases.

// startShell runs a script of busybox in a container, as its first process.
func startShell(t *testing.T, h *lab.Host, id, script string, opts ...oci.SpecOpts) {
	t.Helper()
	task := created(t, h, id, cryoRuntime, nil, cio.NullIO, opts, "busybox", "sh", "-c", script)
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
}

// runs fails the test unless a container's first process is there, and gives its id.
func runs(t *testing.T, h *lab.Host, id string) int {
	t.Helper()
	pid, status, err := h.Task(t.Context(), id)
	if err != nil || status != "RUNNING" {
		t.Fatalf("%s is %q (%v)", id, status, err)
	}
	return pid
}

// checkpoints takes a snapshot of a hostile container, harmlessly, and within a time that the container has no say in.
func checkpoints(t *testing.T, h *lab.Host, id, ref string, flags ...string) lab.Result {
	t.Helper()
	const most = 60 * time.Second
	c := newCanaries(t, h)
	before := c.look()
	r, used := measured(t, h, append([]string{"checkpoint", id, ref}, flags...)...)
	t.Logf("%s: exit code %d after %s, %d MiB of memory", r.Command, r.Code, r.Elapsed.Round(time.Millisecond), used.memory>>20)
	if used.memory > mostMemory || r.Elapsed > most {
		t.Errorf("%s took %d MiB of memory and %s", r.Command, used.memory>>20, r.Elapsed)
	}
	for _, change := range changes(before, c.look()) {
		if !strings.HasPrefix(change, "outside of the container, new: cgroup ") {
			t.Errorf("%s: %s", r.Command, change)
		}
	}
	return r
}

// TestHostileForks has a container that makes processes as fast as it can, up to the limit of its cgroup: snapshots of it are taken all the same, and restored, and what
// comes of that is as whole.
func TestHostileForks(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	id, ref := name(t), "cryo.test/"+name(t)+":1"
	// Each of four shells forks children that fork and end; init reaps what they leave.
	startShell(t, a, id, `s() { while :; do (busybox true & busybox true &) ; done; }; s & s & s & s & s & while :; do wait; done`, oci.WithPidsLimit(150))
	away(t, ref)
	time.Sleep(time.Second)
	for range 3 {
		must(t, checkpoints(t, a, id, ref, "--leave-running"))
		runs(t, a, id)
	}
	must(t, checkpoints(t, a, id, ref))
	remove(t.Context(), a, id)
	archive := "oci:" + filepath.Join(t.TempDir(), "layout")
	must(t, a.Cryo(t.Context(), "push", ref, archive))
	must(t, b.Cryo(t.Context(), "pull", archive+":"+ref))
	cleanup(t, b, id)
	r, c := measured(t, b, "restore", ref, "--name", id)
	must(t, r)
	affordable(t, r, c, 128<<20)
	// What brings its memory, and what told CRIU so, are not among its own files.
	for _, pid := range insiders(runs(t, b, id)) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if link, err := os.Readlink(fd); err == nil && (strings.HasPrefix(link, "socket:") || strings.Contains(link, "userfaultfd")) {
				t.Errorf("process %d has %s", pid, link)
			}
		}
	}
	must(t, checkpoints(t, b, id, ref, "--leave-running")) // which waits until all memory is there
	runs(t, b, id)
	remove(t.Context(), b, id)
}

// TestHostileProcesses has a container of more processes than a snapshot may have: there is none, and the container goes on.
func TestHostileProcesses(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)+":1"
	const many = 1450
	startShell(t, a, id, fmt.Sprintf(`i=0; while [ $i -lt %d ]; do sleep 100000 & i=$((i+1)); done; wait`, many))
	pid := runs(t, a, id)
	eventually(t, "all processes are there", time.Minute, func() bool { return len(insiders(pid)) > many })
	away(t, ref)
	before := trace(t, a)
	r := a.Cryo(t.Context(), "checkpoint", id, ref)
	t.Logf("exit code %d after %s: %s", r.Code, r.Elapsed, r.Stderr)
	refusal(t, r, codePrecondition, "of too many processes and threads")
	if n := len(insiders(runs(t, a, id))); n <= many {
		t.Errorf("%d processes go on", n)
	}
	wantTrace(t, a, before)
}

// TestHostileRaces has a container that puts links to the host's files in the place of its directories and files, and takes them away, all the time: nothing of the
// host's is in a snapshot.
func TestHostileRaces(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	id, ref := name(t), "cryo.test/"+name(t)+":1"
	secret := t.TempDir()
	const text = "nothing of the container's"
	if err := os.WriteFile(filepath.Join(secret, "file"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`mkdir /real /swap && echo own > /real/file && cd /swap || exit 1
n=0
while :; do
	rm -rf d f; cp -r /real d; cp /real/file f
	rm -rf d f; ln -s %[1]s d; ln -s %[1]s/file f
	n=$((n+1)); echo $n > /count
done`, secret)
	startShell(t, a, id, script)
	away(t, ref)
	for i := range 6 {
		time.Sleep(time.Duration(200+13*i) * time.Millisecond)
		must(t, checkpoints(t, a, id, ref, "--leave-running"))
		archive := "oci:" + filepath.Join(t.TempDir(), fmt.Sprint(i))
		must(t, a.Cryo(t.Context(), "push", ref, archive))
		must(t, b.Cryo(t.Context(), "pull", archive+":"+ref))
		cleanup(t, b, id)
		must(t, b.Cryo(t.Context(), "restore", ref, "--name", id))
		root := fmt.Sprintf("/proc/%d/root", runs(t, b, id))
		for _, at := range []string{"swap", "real"} {
			err := filepath.WalkDir(filepath.Join(root, at), func(path string, d fs.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() { // it goes on changing them
					return nil //nolint:nilerr // for the same reason
				}
				if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(text)) {
					t.Errorf("%s has what is the host's", path)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		remove(t.Context(), b, id)
		must(t, b.Cryo(t.Context(), "rm", ref))
	}
	runs(t, a, id)
}

// TestHostileRootFS has a root file system that is made to be hard to copy (46): all kinds of files, links out of it, odd names, fifty thousand names in a directory.
func TestHostileRootFS(t *testing.T) {
	a, b := pair(t)
	pullBase(t, b)
	id, ref := name(t), "cryo.test/"+name(t)+":1"
	start(t, a, id, nil, "workload", "count")
	before := await(t, a, id)
	root := fmt.Sprintf("/proc/%d/root", runs(t, a, id))
	const names = 50_000
	odd := []string{strings.Repeat("n", 255), "new\nline", "esc\x1b[2J", "\xff\xfe", "-rf", "*", "\u202egnp.exe", "back\\slash", " ", ".wh"}
	dir := filepath.Join(root, "hostile")
	err := errors.Join(os.Mkdir(dir, 0o755),
		unix.Mkfifo(dir+"/fifo", 0o666), unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, 1<<8|3), unix.Mknod(dir+"/disk", unix.S_IFBLK|0o666, 254<<8),
		os.Symlink("/etc/shadow", dir+"/link"), os.Symlink("../../../../../../etc", dir+"/up"), os.Symlink("link", dir+"/link2"), os.Symlink(".", dir+"/self"),
		os.Link(dir+"/fifo", dir+"/fifo2"), os.Mkdir(dir+"/many", 0o755), os.Mkdir(dir+"/closed", 0))
	for _, n := range odd {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, n), []byte("x"), 0o755), unix.Chmod(filepath.Join(dir, n), 0o4755))
	}
	for i := range names {
		if err == nil {
			err = unix.Mknod(fmt.Sprintf("%s/many/%d", dir, i), unix.S_IFREG|0o600, 0)
		}
	}
	sparse, e := os.Create(dir + "/sparse")
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<43), sparse.Close()); err != nil { // 8 TiB
		t.Fatal(err)
	}
	away(t, ref)
	must(t, checkpoints(t, a, id, ref))
	remove(t.Context(), a, id)
	archive := "oci:" + filepath.Join(t.TempDir(), "layout")
	must(t, a.Cryo(t.Context(), "push", ref, archive))
	must(t, b.Cryo(t.Context(), "pull", archive+":"+ref))
	cleanup(t, b, id)
	r, c := measured(t, b, "restore", ref, "--name", id)
	must(t, r)
	if c.memory > mostMemory || r.Elapsed > 3*mostTime {
		t.Errorf("the restore took %s and %d MiB of memory", r.Elapsed, c.memory>>20)
	}
	goneOn(t, before, await(t, b, id))
	dir = fmt.Sprintf("/proc/%d/root/hostile", runs(t, b, id))
	for _, n := range odd {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, n), &st); err != nil || st.Mode != unix.S_IFREG|0o4755 {
			t.Errorf("%q: mode %o (%v)", n, st.Mode, err)
		}
	}
	if entries, err := os.ReadDir(dir + "/many"); err != nil || len(entries) != names {
		t.Errorf("%d of %d files (%v)", len(entries), names, err)
	}
	for n, want := range map[string]uint32{"fifo": unix.S_IFIFO, "null": unix.S_IFCHR, "disk": unix.S_IFBLK, "link": unix.S_IFLNK, "up": unix.S_IFLNK, "self": unix.S_IFLNK} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, n), &st); err != nil || st.Mode&unix.S_IFMT != want {
			t.Errorf("%s: mode %o (%v)", n, st.Mode, err)
		}
	}
}

// TestHostileDepth has directories within each other whose path is longer than the kernel takes: there is no snapshot, or a whole one, and the container goes on.
func TestHostileDepth(t *testing.T) {
	a, _ := pair(t)
	id, ref := name(t), "cryo.test/"+name(t)+":1"
	start(t, a, id, nil, "workload", "count")
	at, err := unix.Open(fmt.Sprintf("/proc/%d/root", runs(t, a, id)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		const n = "deep"
		if err := unix.Mkdirat(at, n, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, n, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(at)
		at = next
	}
	_ = unix.Close(at)
	away(t, ref)
	before := trace(t, a)
	r := checkpoints(t, a, id, ref, "--leave-running")
	counts(t, a, id)
	if r.Code == 0 {
		return
	}
	if !strings.Contains(r.Stderr, "is a path that is too long for the kernel") || !strings.Contains(r.Stderr, "hint: remove or rename") || len(r.Stderr) > 1000 {
		t.Errorf("exit code %d: %.3000s", r.Code, r.Stderr)
	}
	wantTrace(t, a, before)
}

// impostor is a preloaded library that has a thread of the name by which cryo knows its own library's, and that answers as it likes. Source of the conversation:
// runtime/gpu/library/doc.go.
const impostor = `
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
static void show(int fd)
{
	char name[16];
	snprintf(name, sizeof name, "cryo-gpu %d", fd);
	pthread_setname_np(pthread_self(), name);
	sleep(1); /* it is looked for */
}
static void *lie(void *how)
{
	sigset_t all;
	int pair[2];
	char buffer[65536];
	struct timeval limit = {20, 0};
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	for (;;) {
		pthread_setname_np(pthread_self(), "cryo-gpu");
		while (sigwaitinfo(&all, NULL) != 62)
			;
		if (!strcmp(how, "silent"))
			continue;
		if (!strcmp(how, "letters")) {
			pthread_setname_np(pthread_self(), "cryo-gpu xyz");
			sleep(1);
		}
		if (!strcmp(how, "mute")) {
			socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
			show(pair[0]);
		}
		if (!strcmp(how, "number"))
			show(999999);
		if (!strcmp(how, "file"))
			show(open("/dev/null", O_RDWR));
		if (!strcmp(how, "stream")) {
			socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
			show(pair[0]);
		}
		if (!strcmp(how, "garbage") || !strcmp(how, "flood")) {
			socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair);
			setsockopt(pair[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit); /* its own copy of the other end keeps it open */
			setsockopt(pair[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
			show(pair[0]);
		}
		if (!strcmp(how, "garbage"))
			while (recv(pair[1], buffer, sizeof buffer, 0) > 0)
				send(pair[1], buffer, 4096, MSG_NOSIGNAL);
		if (!strcmp(how, "flood"))
			while (send(pair[1], "CGPU\1\0\1\0", 8, MSG_NOSIGNAL) > 0)
				;
	}
}
__attribute__((constructor)) static void begin(void)
{
	pthread_t thread;
	char *how = getenv("IMPOSTOR");
	if (how)
		pthread_create(&thread, NULL, lie, how);
}
`

// TestHostileLibrary has containers in which somebody else answers for the preloaded library: nothing waits for it without end, nothing of it is believed, there is
// no snapshot or one by the driver, and the container goes on.
func TestHostileLibrary(t *testing.T) {
	a, _ := gpuPair(t)
	dir := filepath.Join(a.Dir, "home", "impostor")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(dir, "impostor.c")
	if err := os.WriteFile(source, []byte(impostor), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-pthread", "-o", filepath.Join(dir, "impostor.so"), source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const byDriver = "" // the process is taken for one that has lost its library
	for how, words := range map[string]string{
		"silent": "wait for its socket", "letters": `its thread is called "cryo-gpu xyz"`, "file": "what it shows is not a unix socket",
		"stream": "what it shows is not a socket of packets", "number": byDriver, "mute": byDriver, "garbage": "a message is shorter than its kind is", "flood": "a message is shorter than its kind is",
	} {
		t.Run(how, func(t *testing.T) {
			id, ref := name(t), "cryo.test/"+name(t)+":1"
			before := startGPU(t, a, id, slices.Concat(handing, []string{"--env", "IMPOSTOR=" + how, "--env", "LD_PRELOAD=/impostor/impostor.so",
				"--mount", "type=bind,src=" + dir + ",dst=/impostor,options=rbind:ro"}), "--blocks", blocks)
			forget(t, a, ref)
			r := checkpoints(t, a, id, ref, "--leave-running")
			if words == byDriver {
				if bytes, fallbacks := pieces(t, a, ref); bytes > 0 || fallbacks == "" {
					t.Errorf("%.0f bytes were handed over; fallbacks: %q", bytes, fallbacks)
				}
			} else if r.Code == 0 || !strings.Contains(r.Stderr, words) || !strings.Contains(r.Stderr, "the container runs on") || !strings.Contains(r.Stderr, "hint: ") || strings.HasSuffix(r.Stderr, "exceeded\n") {
				t.Errorf("exit code %d, nothing of %q: %s", r.Code, words, r.Stderr)
			}
			unharmed(t, a, id, before)
			remove(t.Context(), a, id)
			alone(t, a)
		})
	}
}
