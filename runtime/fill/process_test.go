package fill

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/integration/twintest"
)

// The process that is filled in these tests is this test program once more: it registers memory as CRIU's restorer does.
const (
	slots     = 8
	childSeed = "LAZYPAGES_TEST_SEED"
	childHuge = "LAZYPAGES_TEST_HUGE"
)

// fakeSource makes up the memory of process 1.
type fakeSource struct {
	seed   uint64
	layout Layout
	delay  time.Duration
	fail   int // which read fails; 0: none

	mu    sync.Mutex
	reads int // guarded by mu
}

var errSource = errors.New("as ordered")

func newFakeSource(seed uint64) *fakeSource {
	s := &fakeSource{seed: seed}
	var p Piece
	var buf [twintest.Page]byte
	for slot := range slots {
		for at := uint64(0); at < twintest.SlotBytes; at += twintest.Page {
			addr := twintest.Slot(twintest.Lazy, slot) + at
			if len(p) > 0 && addr>>20 != p[0].Addr>>20 {
				s.layout.Pieces = append(s.layout.Pieces, p)
				p = nil
			}
			if !twintest.Content(seed, addr, buf[:]) {
				continue
			}
			if n := len(p); n > 0 && p[n-1].Addr+p[n-1].Length == addr {
				p[n-1].Length += twintest.Page
			} else {
				p = append(p, Extent{addr, twintest.Page})
			}
		}
	}
	s.layout.Pieces = append(s.layout.Pieces, p)
	return s
}

func (s *fakeSource) Layout(int) (Layout, error) { return s.layout, nil }

func (s *fakeSource) Reader() (Reader, error) { return s, nil }

func (s *fakeSource) Close() {}

func (s *fakeSource) Read(_ context.Context, _, piece int) ([]byte, error) {
	time.Sleep(s.delay)
	s.mu.Lock()
	s.reads++
	failed := s.reads == s.fail
	s.mu.Unlock()
	if failed {
		return nil, errSource
	}
	var data []byte
	for _, e := range s.layout.Pieces[piece] {
		for at := uint64(0); at < e.Length; at += twintest.Page {
			data = append(data, make([]byte, twintest.Page)...)
			twintest.Content(s.seed, e.Addr+at, data[len(data)-twintest.Page:])
		}
	}
	return data, nil
}

func TestMain(m *testing.M) {
	if seed, err := strconv.ParseUint(os.Getenv(childSeed), 10, 64); err == nil {
		os.Exit(filled(seed))
	}
	if os.Getenv(childHuge) != "" {
		os.Exit(advised())
	}
	os.Exit(m.Run())
}

// begin starts a process that is to be filled, and gives the filler with it.
func begin(t *testing.T, seed uint64, source *fakeSource) (f *Filler, cmd *exec.Cmd) {
	t.Helper()
	f, cmd, held := beginAs(t, childSeed+"="+strconv.FormatUint(seed, 10), source)
	t.Cleanup(func() {
		if n := held(); n > 0 && f.complete() {
			t.Errorf("%d are held still", n)
		}
	})
	return f, cmd
}

// beginAs also tells how many userfaultfds another process would hold.
func beginAs(t *testing.T, env string, source Source) (f *Filler, cmd *exec.Cmd, _ func() int) {
	t.Helper()
	if err := Supported(); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Receive does so, too. The process may send before.
	if err := unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has ended, in most cases
		_ = cmd.Wait()
	})
	theirs.Close()
	f = NewFiller(source)
	next := 0
	var mu sync.Mutex
	held := map[int]bool{}
	hold := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		held[next] = true
		return next
	}
	f.Hold = func(int) (int, error) { return hold(), nil }
	f.Drop = func(id int) {
		mu.Lock()
		defer mu.Unlock()
		if !held[id] {
			t.Errorf("%d is let go of and was not held", id)
		}
		delete(held, id)
	}
	err = Receive(conn.(*net.UnixConn), func(task Task) error {
		if task.Host != cmd.Process.Pid {
			t.Errorf("it is process %d instead of %d", task.Host, cmd.Process.Pid)
		}
		return f.Add(hold(), task)
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, cmd, func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(held)
	}
}

// TestTwin fills processes that change their memory meanwhile in all ways, and are compared with their twins.
func TestTwin(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			source := newFakeSource(seed)
			source.delay = time.Duration(seed%3) * 200 * time.Microsecond
			f, cmd := begin(t, seed, source)
			if seed%2 == 0 {
				f.Restored()
			} else {
				time.AfterFunc(20*time.Millisecond, f.Restored)
			}
			if err := f.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err != nil {
				t.Fatalf("the process: %v: %s", err, twintest.Explain(cmd.ProcessState.ExitCode()))
			}
		})
	}
}

// TestArriving fills a process from a source of which more and more is there: what nobody waits for is not asked for before.
func TestArriving(t *testing.T) {
	f, cmd := begin(t, 4, newFakeSource(4))
	var there atomic.Int64
	f.Next = func(_, from int) int {
		if int64(from) < there.Load() {
			return from
		}
		return -1
	}
	f.Urgent = 3
	f.Restored()
	arriving, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for arriving.Err() == nil {
			time.Sleep(time.Millisecond)
			there.Add(3)
			f.Arrived()
		}
	})
	err := f.Run(t.Context())
	cancel()
	all.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the process: %v: %s", err, twintest.Explain(cmd.ProcessState.ExitCode()))
	}
}

// TestPick begins with what is there, each piece once.
func TestPick(t *testing.T) {
	s := &space{pid: 7, states: make([]byte, 10), cursor: 6}
	there := map[int]bool{1: true, 8: true}
	ask := func(_, from int) int {
		for ; from < 10; from++ {
			if there[from] {
				return from
			}
		}
		return -1
	}
	for _, want := range []int{8, 1, -1} {
		if got := s.pick(ask); got != want {
			t.Errorf("picks %d instead of %d", got, want)
		}
	}
	there[0], there[9] = true, true
	for _, want := range []int{9, 0, -1} {
		if got := s.pick(ask); got != want {
			t.Errorf("picks %d instead of %d", got, want)
		}
	}
	if got := s.pick(nil); got != 2 {
		t.Errorf("picks %d of all", got)
	}
}

// TestSourceFails has a process that waits for what never comes, and never goes on with anything else.
func TestSourceFails(t *testing.T) {
	for _, fail := range []int{1, 7} {
		source := newFakeSource(1)
		source.fail = fail
		f, cmd := begin(t, 1, source)
		f.Restored()
		if err := f.Run(t.Context()); !errors.Is(err, errSource) {
			t.Fatalf("Run gives %v", err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		select {
		case err := <-ended:
			t.Fatalf("the process has ended: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
}

// TestProcessEnds kills the process while it is filled.
func TestProcessEnds(t *testing.T) {
	source := newFakeSource(2)
	source.delay = 5 * time.Millisecond
	f, cmd := begin(t, 2, source)
	f.Rate = 1 << 20
	f.Restored()
	time.AfterFunc(50*time.Millisecond, func() { _ = cmd.Process.Kill() })
	if err := f.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestCancel ends the filling.
func TestCancel(t *testing.T) {
	f, _ := begin(t, 3, newFakeSource(3))
	f.Rate = 1 << 20
	f.Restored()
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(50*time.Millisecond, func() { cancel(errSource) })
	if err := f.Run(ctx); !errors.Is(err, errSource) {
		t.Fatalf("Run gives %v", err)
	}
}

// filled is the process. It has no other threads that could hold a lock of Go's runtime in a fork, and makes no garbage.
func filled(seed uint64) int {
	debug.SetGCPercent(-1)
	if err := errors.Join(twintest.Map(twintest.Lazy, slots), twintest.Map(twintest.Twin, slots)); err != nil {
		return 3
	}
	twintest.Fill(twintest.Twin, slots, seed)
	if status := register(slots); status != 0 {
		return status
	}
	return twintest.New(slots, seed).Run(100, 2)
}

// register does what CRIU does for one process and a zombie.
func register(slots int) (status int) {
	r := struct{ api, features, ioctls uint64 }{api: api, features: featuresEvents}
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 || ioctl(int(uffd), ioctlAPI, unsafe.Pointer(&r)) != 0 {
		return 2
	}
	const ioctlRegister = 0xc020aa00
	for slot := range slots {
		r := struct{ start, length, mode, ioctls uint64 }{twintest.Slot(twintest.Lazy, slot), twintest.SlotBytes, 1, 0}
		if ioctl(int(uffd), ioctlRegister, unsafe.Pointer(&r)) != 0 {
			return 4
		}
	}
	zombie := int32(-7)
	for _, message := range []struct {
		data   []byte
		rights []byte
	}{{data: word(uint32(zombie))}, {data: word(1)}, {[]byte{0}, unix.UnixRights(int(uffd))}, {data: word(finished)}} {
		if err := unix.Sendmsg(3, message.data, message.rights, nil, 0); err != nil {
			return 5
		}
	}
	_ = unix.Close(int(uffd))
	return 0
}

// TestEnlarge fills memory that its process wants in huge pages.
func TestEnlarge(t *testing.T) {
	f, cmd, _ := beginAs(t, childHuge+"=1", fullSource{})
	f.Restored()
	if err := f.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.Enlarge()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(rollup), "AnonHugePages:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil || kib < hugePage>>10 {
		t.Errorf("it has %d KiB in huge pages: %v", kib, err)
	}
}

// fullSource is one slot without zeros.
type fullSource struct{}

func (fullSource) Layout(int) (Layout, error) {
	var l Layout
	const piece = 1 << 20
	for at := uint64(0); at < twintest.SlotBytes; at += piece {
		l.Pieces = append(l.Pieces, Piece{{twintest.Lazy + at, min(piece, twintest.SlotBytes-at)}})
	}
	l.Regions = []Region{{Start: twintest.Lazy, End: twintest.Lazy + twintest.SlotBytes, Huge: true}}
	return l, nil
}

func (fullSource) Reader() (Reader, error) { return fullSource{}, nil }

func (s fullSource) Read(_ context.Context, _, piece int) ([]byte, error) {
	l, _ := s.Layout(0) // never fails
	return bytes.Repeat([]byte{1}, int(l.Pieces[piece][0].Length)), nil
}

func (fullSource) Close() {}

// advised is a process that wants huge pages, and waits until it is killed.
func advised() int {
	if err := twintest.Map(twintest.Lazy, 1); err != nil {
		return 3
	}
	if _, _, errno := unix.Syscall(unix.SYS_MADVISE, twintest.Lazy, twintest.SlotBytes, unix.MADV_HUGEPAGE); errno != 0 {
		return 6
	}
	if status := register(1); status != 0 {
		return status
	}
	time.Sleep(time.Hour)
	return 0
}

func word(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
