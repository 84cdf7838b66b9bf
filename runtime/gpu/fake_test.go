package gpu

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cryo-project/cryo/runtime/gpu/driver"
)

// tree is a /proc of a test's own.
type tree struct {
	t    *testing.T
	root string
}

func newTree(t *testing.T) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	tr.write("proc/meminfo", "MemTotal:       200000000 kB\nMemAvailable:   100000000 kB\n")
	tr.write("sys/module/nvidia/version", "580.159.04\n")
	return tr
}

func (tr tree) write(path, text string) {
	tr.t.Helper()
	path = filepath.Join(tr.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tr.t.Fatal(err)
	}
}

func (tr tree) link(path, target string) {
	tr.t.Helper()
	path = filepath.Join(tr.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		tr.t.Fatal(err)
	}
}

const (
	plainMaps = "00400000-00401000 r-xp 00000000 00:31 1234   /usr/bin/app\n7ffc0000-7ffc1000 rw-p 00000000 00:00 0   [stack]\n"
	cudaMaps  = plainMaps + "7f000000-7f001000 r-xp 00000000 00:31 4321   /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04\n"
	ncclMaps  = cudaMaps + "7e000000-7e001000 r-xp 00000000 00:31 4322   /usr/lib/libnccl.so.2\n"
)

// process adds one that has mapped libcuda.
func (tr tree) process(pid int) {
	tr.t.Helper()
	dir := fmt.Sprintf("proc/%d/", pid)
	tr.write(dir+"comm", "app\n")
	tr.write(dir+"status", fmt.Sprintf("Name:\tapp\nNSpid:\t%d\t%d\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n", pid, pid-100))
	tr.write(dir+"stat", fmt.Sprintf("%d (app) S 1 1 1 0 -1 4194304 0", pid))
	tr.write(dir+"maps", cudaMaps)
	tr.write(dir+"environ", "PATH=/bin\x00")
	tr.write(dir+"cgroup", "0::/c\n")
	tr.link(dir+"ns/ipc", "ipc:[1]")
	tr.link(dir+"fd/3", "/dev/nvidia0")
}

// end makes a process end.
func (tr tree) end(pid int) {
	tr.t.Helper()
	if err := os.RemoveAll(filepath.Join(tr.root, "proc", strconv.Itoa(pid))); err != nil {
		tr.t.Fatal(err)
	}
}

const (
	uuidA = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
)

// world is the driver and its processes; helpers come and go.
type world struct {
	tree
	mu      sync.Mutex
	facts   driver.Facts
	states  map[int]driver.State
	raised  map[int]bool
	ready   time.Time     // since when a keeper is
	pairs   []driver.Pair // of the last restore
	did     []string
	open    int    // helpers
	fail    string // "lock 102": what the next such call does not do ...
	how     string // ... but: a CUresult, "die", "die after", "die late", "hang", "cancel", "end"
	always  bool   // not only the next
	cancel  func()
	started int
	noStart int // helpers that do not start, from the second on

	libraries map[int]*preloaded
	keepers   int    // that run
	noKeeper  bool   // none starts
	room      bool   // for copies
	mistaken  []int  // processes whose driver does not find memory
	crammed   bool   // no room for one piece more
	launched  func() // when a keeper is; nil: nothing is to be done then
	tight     bool   // no room for memory that is attached to be a process's own, beside what others have of it

	ending chan struct{} // unless nil, keepers end when it is closed
	files  []*os.File
	came   chan string // has what came to the peer
}

func newWorld(t *testing.T, pids ...int) *world {
	t.Helper()
	w := &world{tree: newTree(t), states: map[int]driver.State{}, raised: map[int]bool{}}
	w.facts = driver.Facts{Driver: "580.159.04", CUDA: 13000, Devices: []driver.Device{
		{UUID: uuidA, Index: 0, Minor: 0, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Free: 100 << 30},
		{UUID: uuidB, Index: 1, Minor: 1, Name: "H200", Architecture: "9.0", Memory: 140 << 30, Free: 100 << 30},
	}}
	for _, pid := range pids {
		w.process(pid)
		w.states[pid] = driver.Running
		w.facts.Uses = append(w.facts.Uses, driver.Use{PID: pid, UUID: uuidA, Memory: 1 << 30})
	}
	return w
}

func (w *world) container() Container {
	return Container{
		PIDs: func(context.Context) ([]int, error) {
			var pids []int
			entries, err := os.ReadDir(filepath.Join(w.root, "proc"))
			for _, e := range entries {
				if pid, err := strconv.Atoi(e.Name()); err == nil {
					pids = append(pids, pid)
				}
			}
			return pids, err
		},
		Start: func(context.Context) (Driver, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.started++
			if w.started > 1 && w.noStart > 0 {
				w.noStart--
				return nil, &driver.NoHelperError{Path: "there", Err: os.ErrNotExist}
			}
			w.open++
			return &fakeDriver{w: w, gone: make(chan struct{})}, nil
		},
		Dial: func(_ context.Context, pid int) (Owner, error) {
			o := &fakeOwner{w: w, pid: pid}
			if w.libraries[pid] == nil {
				return nil, o.gone("no thread is called so")
			}
			return o, o.do("dial")
		},
		Minors: []int{0},
		Root:   w.root,
	}
}

func (w *world) engine() *Engine {
	return &Engine{Container: w.container(), Timeout: 50 * time.Millisecond, Raise: w.raise, Lower: w.lower, Force: []string{"gpu-several"}}
}

func (w *world) raise(pid int, lease time.Duration) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states[pid] != driver.Running || lease <= 50*time.Millisecond {
		w.t.Errorf("raise %d in state %s for %s", pid, w.states[pid], lease)
	}
	w.raised[pid] = true
	return 1, nil
}

func (w *world) lower(pid int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.states[pid] == driver.Checkpointed {
		w.t.Errorf("lower %d, whose pages the driver has taken", pid)
	}
	w.raised[pid] = false
	return 1, nil
}

// settled reports processes that do not run as before.
func (w *world) settled() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for pid, s := range w.states {
		if s != driver.Running && s != driver.None {
			w.t.Errorf("process %d is left %s; did %q", pid, s, w.did)
		}
	}
	w.quiet()
}

// quiet reports helpers and flags that are left.
func (w *world) quiet() {
	w.t.Helper()
	for pid, raised := range w.raised {
		if raised {
			w.t.Errorf("the flag of process %d is left raised", pid)
		}
	}
	if w.open != 0 {
		w.t.Errorf("%d helpers are left", w.open)
	}
}

// fakeDriver is one helper process.
type fakeDriver struct {
	w      *world
	dead   bool // guarded by w.mu
	closed bool // guarded by w.mu
	gone   chan struct{}
	once   sync.Once
}

func (k *fakeDriver) die() {
	k.dead = true
	k.once.Do(func() { close(k.gone) })
}

var errDied = &driver.DiedError{How: "as ordered"}

// do makes a call for each process, in order, and keeps to the world's orders.
func (k *fakeDriver) do(ctx context.Context, call string, pids []int, from, to driver.State) ([]driver.Outcome, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w := k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.dead {
		return nil, errDied
	}
	var outcomes []driver.Outcome
	for _, pid := range pids {
		step := fmt.Sprintf("%s %d", call, pid)
		w.did = append(w.did, step)
		o := driver.Outcome{PID: pid, Call: call}
		how := ""
		if step == w.fail {
			how = w.how
			if !w.always {
				w.fail = ""
			}
		}
		code, err := strconv.Atoi(how)
		switch {
		case err == nil && how != "":
			o.Code, o.Name = code, "CUDA_ERROR"
		case how == "die":
			k.die()
			return nil, errDied
		case how == "die late": // what was asked comes about later
			time.AfterFunc(5*time.Millisecond, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.states[pid] = to
			})
			k.die()
			return nil, errDied
		case how == "hang":
			w.mu.Unlock()
			<-k.gone
			w.mu.Lock()
			return nil, errDied
		case how == "end":
			w.end(pid)
			w.states[pid] = driver.None
			o.Code = 999
		case pid == 0: // only asked
		case w.states[pid] != from:
			o.Code, o.Name = driver.IllegalState, "CUDA_ERROR_ILLEGAL_STATE"
		default:
			w.states[pid] = to
		}
		outcomes = append(outcomes, o)
		if how == "die after" {
			k.die()
			return nil, errDied
		}
		if how == "cancel" {
			w.cancel()
		}
	}
	return outcomes, ctx.Err()
}

func (k *fakeDriver) Facts(ctx context.Context) (driver.Facts, error) {
	_, err := k.do(ctx, "facts", []int{0}, "", "")
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	return k.w.facts, err
}

func (k *fakeDriver) States(ctx context.Context, pids []int) (map[int]driver.State, error) {
	if _, err := k.do(ctx, "states", []int{0}, "", ""); err != nil {
		return nil, err
	}
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	states := map[int]driver.State{}
	for _, pid := range pids {
		states[pid] = k.w.states[pid]
	}
	return states, nil
}

func (k *fakeDriver) Lock(ctx context.Context, pids []int, _ time.Duration) ([]driver.Outcome, error) {
	return k.do(ctx, "lock", pids, driver.Running, driver.Locked)
}

func (k *fakeDriver) Checkpoint(ctx context.Context, pids []int) ([]driver.Outcome, error) {
	return k.do(ctx, "checkpoint", pids, driver.Locked, driver.Checkpointed)
}

func (k *fakeDriver) Restore(ctx context.Context, pids []int, pairs []driver.Pair) ([]driver.Outcome, error) {
	k.w.pairs = pairs
	return k.do(ctx, "restore", pids, driver.Checkpointed, driver.Locked)
}

func (k *fakeDriver) Unlock(ctx context.Context, pids []int) ([]driver.Outcome, error) {
	return k.do(ctx, "unlock", pids, driver.Locked, driver.Running)
}

func (k *fakeDriver) Silence(time.Duration) error {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	k.die()
	return nil
}

func (k *fakeDriver) Close() error {
	k.w.mu.Lock()
	defer k.w.mu.Unlock()
	if !k.closed {
		k.closed = true
		k.w.open--
	}
	k.die()
	return nil
}

// steps are those of the given calls that were made.
func (w *world) steps(calls ...string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(w.did), func(s string) bool {
		call, _, _ := strings.Cut(s, " ")
		return !slices.Contains(calls, call)
	}), ", ")
}

func removeDescriptor(w *world, pid int) error {
	return os.Remove(filepath.Join(w.root, "proc", strconv.Itoa(pid), "fd/3"))
}
