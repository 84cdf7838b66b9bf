package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/channel"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// beforePrewarmed is what the tests of this part need before they run, or do as a child.
func beforePrewarmed() {
	if len(os.Args) == 2 && os.Args[1] == PrewarmedCommand {
		if err := ServePrewarmed(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == "list" {
		all, err := NewPrewarmedDir(os.Args[2]).List(context.Background())
		fmt.Println(len(all), err)
		os.Exit(0)
	}

}

const (
	gpuA = "GPU-11111111-1111-1111-1111-111111111111"
	gpuB = "GPU-22222222-2222-2222-2222-222222222222"
	mega = 1 << 20
)

// loaded is a snapshot with so many pieces of 2 MiB on each device.
func loaded(digest string, pieces map[string]int) Prewarmed {
	i := Prewarmed{Version: prewarmedVersion, Reference: digest + ":1", Digest: "sha256:" + digest, Facts: device.Facts{Driver: "580", Devices: []device.Device{
		{UUID: gpuA, Memory: 2048 * mega, Free: 1024 * mega}, {UUID: gpuB, Memory: 2048 * mega, Free: 1024 * mega},
	}}}
	for _, uuid := range []string{gpuA, gpuB} {
		for range pieces[uuid] {
			i.Pieces = append(i.Pieces, record.GPUPiece{Device: uuid, Size: 2 * mega})
		}
	}
	return i
}

// memories are files that tell which they are.
func memories(t *testing.T, n int) (files []*os.File) {
	t.Helper()
	for range n {
		fd, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "memory")
		t.Cleanup(func() { f.Close() })
		files = append(files, f)
	}
	return files
}

// keepIt has a snapshot kept, until the test's end.
func keepIt(t *testing.T, d *PrewarmedDir, i Prewarmed) []*os.File {
	t.Helper()
	b, err := d.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	files := memories(t, len(i.Pieces))
	if err := b.Keep(t.Context(), "", i, files); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		all, _ := d.List(context.Background())
		for _, i := range all {
			if err := d.Remove(context.Background(), i); err != nil {
				t.Error(err)
			}
		}
	})
	return files
}

// digests are those of what is listed.
func digests(t *testing.T, d *PrewarmedDir) (all []string) {
	t.Helper()
	found, err := d.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range found {
		all = append(all, strings.TrimPrefix(i.Digest, "sha256:"))
	}
	return all
}

func any1(Prewarmed) bool { return true }

// TestPrewarmedLease borrows more pieces than go with a message: they are the same files in the same order, nobody else gets them meanwhile, the next
// does, and who uses them is the last.
func TestPrewarmedLease(t *testing.T) {
	d := NewPrewarmedDir(t.TempDir())
	i := loaded("a", map[string]int{gpuA: 250, gpuB: 3})
	files := keepIt(t, d, i)
	if l, err := d.Lease("sha256:b", any1); l != nil || err != nil {
		t.Errorf("another snapshot gives %v, %v", l, err)
	}
	if l, err := d.Lease(i.Digest, func(i Prewarmed) bool { return len(i.Pieces) == 252 }); l != nil || err != nil {
		t.Errorf("what does not fit gives %v, %v", l, err)
	}
	for round := range 2 {
		l, err := d.Lease(i.Digest, any1)
		if err != nil || l == nil {
			t.Fatal(l, err)
		}
		if !slices.Equal(l.Info().Pieces, i.Pieces) || l.Info().Facts.Driver != "580" {
			t.Errorf("it is %+v", l.Info())
		}
		for n, f := range l.Files() {
			a, _ := f.Stat()
			b, _ := files[n].Stat()
			if !os.SameFile(a, b) {
				t.Fatalf("piece %d is another", n)
			}
		}
		if again, err := d.Lease(i.Digest, any1); again != nil || err != nil {
			t.Errorf("it is leased twice: %v, %v", again, err)
		}
		if all, err := d.List(t.Context()); err != nil || len(all) != 1 || !all[0].Leased {
			t.Errorf("listed is %+v, %v", all, err)
		}
		if round == 1 {
			l.Use(t.Context())
			if got := digests(t, d); len(got) != 0 {
				t.Errorf("what was used is listed: %v", got)
			}
			if _, err := l.Files()[0].Stat(); err != nil {
				t.Error(err)
			}
		}
		l.Close()
		if round == 0 { // the process hears of it soon
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				all, err := d.List(t.Context())
				if err == nil && len(all) == 1 && !all[0].Leased {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it is not given back: %+v, %v", all, err)
				}
			}
		}
	}
	if _, err := os.Lstat(d.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left is %v", err)
	}
}

// TestDead has processes killed and stopped: what a dead one kept counts for nothing, and goes; a stopped one has nothing to do.
func TestDead(t *testing.T) {
	d := NewPrewarmedDir(t.TempDir())
	i := loaded("a", map[string]int{gpuA: 2})
	for sig, lives := range map[unix.Signal]bool{unix.SIGKILL: false, unix.SIGTERM: false, unix.SIGSTOP: true} {
		keepIt(t, d, i)
		all, err := d.List(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatal(all, err)
		}
		p, err := find(all[0].dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.PidfdSendSignal(p.pidfd, sig, nil, 0); err != nil {
			t.Fatal(err)
		}
		if lives {
			l, err := d.Lease(i.Digest, any1)
			if err != nil || l == nil {
				t.Fatalf("%s: leased %v, %v", sig, l, err)
			}
			l.Use(t.Context())
			l.Close()
		} else {
			awaitEnd(t, p)
			if l, err := d.Lease(i.Digest, any1); l != nil || err == nil {
				t.Errorf("%s: leased %v, %v", sig, l, err)
			}
		}
		awaitEnd(t, p)
		p.close()
		if got := digests(t, d); len(got) != 0 {
			t.Errorf("%s: %v are left", sig, got)
		}
	}
}

// awaitEnd waits for the end of a process.
func awaitEnd(t *testing.T, p *process) {
	t.Helper()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}, 10000); n != 1 {
		t.Errorf("it lives: %v", err)
	}
}

// TestElsewhere looks from another PID namespace: what is kept is listed, and stays.
func TestElsewhere(t *testing.T) {
	root := t.TempDir()
	d := NewPrewarmedDir(root)
	keepIt(t, d, loaded("a", map[string]int{gpuA: 1}))
	command := exec.Command("/proc/self/exe", "list", root)
	command.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	out, err := command.Output()
	if errors.Is(err, unix.EPERM) {
		t.Skip("only root makes PID namespaces")
	}
	if err != nil || string(out) != "1 <nil>\n" {
		t.Errorf("%q, %v", out, err)
	}
	if got := digests(t, d); !slices.Equal(got, []string{"a"}) {
		t.Errorf("left are %v", got)
	}
}

// TestBegun has who begins end before the directory has its name: the process ends, and what it was to keep goes.
func TestBegun(t *testing.T) {
	d := NewPrewarmedDir(t.TempDir())
	if err := d.make(); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(d.path, unfinished+"1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	info, err := loaded("a", map[string]int{gpuA: 1}).write(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer info.Close()
	own, other, err := channel.Pair()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/proc/self/exe", PrewarmedCommand)
	command.ExtraFiles = []*os.File{other, info, memories(t, 1)[0]}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	other.Close()
	if err := hear(own); err != nil {
		t.Fatal(err)
	}
	if p, err := find(dir); err != nil {
		t.Error(err)
	} else {
		p.close()
	}
	own.Close()
	if err := command.Wait(); err == nil {
		t.Error("it ends well")
	}
	if got := digests(t, d); len(got) != 0 {
		t.Errorf("listed are %v", got)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left is %s, %v", dir, err)
	}
}

// TestSweep clears away what nobody finished, and leaves alone what is in use.
func TestSweep(t *testing.T) {
	d := NewPrewarmedDir(t.TempDir())
	keepIt(t, d, loaded("a", map[string]int{gpuA: 1}))
	for _, name := range []string{unfinished + "x", "dead"} {
		dir := filepath.Join(d.path, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := loaded("b", map[string]int{gpuA: 1}).write(dir)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if l, err := d.Lease("sha256:b", any1); l != nil || err == nil {
		t.Errorf("what nobody keeps is leased: %v, %v", l, err)
	}
	if got := digests(t, d); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed are %v", got)
	}
	if entries, _ := os.ReadDir(d.path); len(entries) != 1 {
		t.Errorf("left are %v", entries)
	}
}

// TestPlace: who else can look into a directory could have put a file there.
func TestPlace(t *testing.T) {
	open, own, link := filepath.Join(t.TempDir(), "open"), filepath.Join(t.TempDir(), "own"), filepath.Join(t.TempDir(), "link")
	for dir, mode := range map[string]os.FileMode{open: 0o755, own: 0o700} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	if f, err := openDir(own); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
	if _, err := openDir(open); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a directory that all can look into: %v", err)
	}
	if _, err := openDir(link); err == nil {
		t.Error("a link is taken")
	}
	for _, dir := range []string{open, link} {
		if _, err := find(dir); err == nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("it looks into %s: %v", dir, err)
		}
	}
}

// TestPrewarmedRoom makes room on devices, the least recently used first, and none where that does not do.
func TestPrewarmedRoom(t *testing.T) {
	const each = 100 // pieces: 200 MiB
	for name, test := range map[string]struct {
		want   Prewarmed
		rest   int64
		budget int64
		leased bool // the oldest is
		free   int64
		ends   []string
		fails  string
	}{
		"there is room":       {want: loaded("n", map[string]int{gpuA: each}), free: 1024 * mega},
		"budget":              {want: loaded("n", map[string]int{gpuA: each}), free: 1024 * mega, budget: 400 * mega, ends: []string{"old"}},
		"a small budget":      {want: loaded("n", map[string]int{gpuA: each}), free: 1024 * mega, budget: 399 * mega, ends: []string{"old", "new"}},
		"too small a budget":  {want: loaded("n", map[string]int{gpuA: each}), free: 1024 * mega, budget: 199 * mega, fails: "the budget"},
		"memory":              {want: loaded("n", map[string]int{gpuA: each}), free: 300 * mega, ends: []string{"old"}},
		"memory of processes": {want: loaded("n", map[string]int{gpuA: each}), free: 300 * mega, rest: 100 * mega, ends: []string{"old", "new"}},
		"no memory":           {want: loaded("n", map[string]int{gpuA: each}), free: 55 * mega, fails: "are free or can be made so"},
		"in use":              {want: loaded("n", map[string]int{gpuA: each}), free: 300 * mega, leased: true, ends: []string{"new"}},
		"all in use":          {want: loaded("n", map[string]int{gpuA: each}), free: 100 * mega, leased: true, fails: "restores are using 1"},
		"another device":      {want: loaded("n", map[string]int{gpuB: each}), free: 100 * mega},
	} {
		t.Run(name, func(t *testing.T) {
			d := NewPrewarmedDir(t.TempDir())
			keepIt(t, d, loaded("old", map[string]int{gpuA: each}))
			keepIt(t, d, loaded("new", map[string]int{gpuA: each}))
			if test.leased {
				l, err := d.Lease("sha256:old", any1)
				if err != nil || l == nil {
					t.Fatal(l, err)
				}
				defer l.Close()
			}
			b, err := d.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			test.want.Facts.Devices[0].Free = test.free
			removed, err := b.Room(test.want, map[string]int64{gpuA: test.rest}, test.budget)
			if errdefs.IsResourceExhausted(err) != (test.fails != "") || err != nil && (failure.Hint(err) == "" || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("got %v", err)
			}
			var ended []string
			for _, i := range removed {
				ended = append(ended, strings.TrimPrefix(i.Digest, "sha256:"))
			}
			if !slices.Equal(ended, test.ends) {
				t.Errorf("%v are ended, want %v", ended, test.ends)
			}
			b.Close()
			if left := digests(t, d); len(left) != 2-len(test.ends) {
				t.Errorf("left are %v", left)
			}
		})
	}
}

// TestAgain: what is kept already is only used anew.
func TestAgain(t *testing.T) {
	d := NewPrewarmedDir(t.TempDir())
	i := loaded("a", map[string]int{gpuA: 1})
	keepIt(t, d, i)
	keepIt(t, d, loaded("b", map[string]int{gpuA: 1}))
	b, err := d.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.Again(i); !again || err != nil {
		t.Error(again, err)
	}
	if again, err := b.Again(loaded("a", map[string]int{gpuB: 1})); again || err != nil {
		t.Error(again, err)
	}
	b.Close()
	if got := digests(t, d); !slices.Equal(got, []string{"b", "a"}) {
		t.Errorf("the order of use is %v", got)
	}
}

// TestInherited: a lock that the caller holds for its children ends with them, though the process lives on.
func TestInherited(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	keepIt(t, NewPrewarmedDir(t.TempDir()), loaded("a", map[string]int{gpuA: 1}))
	unix.Close(pipe[1])
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pipe[0]), Events: unix.POLLIN}}, 5000); n != 1 || err != nil {
		t.Errorf("the process has it open: %d, %v", n, err)
	}
}

func TestCgroupRoots(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"proc/self", "sys/fs/cgroup/unified"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := "12:memory:/user.slice/x\n9:cpu,cpuacct:/\n1:name=systemd:/user.slice\n0::/user.slice/a:b\n"
	if err := os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, namespaced := range []bool{false, true} {
		want := []string{"memory", "systemd", "unified"}
		if namespaced {
			want = want[:2]
			if err := os.WriteFile(filepath.Join(root, "sys/fs/cgroup/unified/cgroup.type"), []byte("domain\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got := cgroupRoots(root)
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], filepath.Join(root, "sys/fs/cgroup")+"/")
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
	}
}
