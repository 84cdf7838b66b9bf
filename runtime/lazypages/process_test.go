package lazypages

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime/debug"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The process that is filled in these tests is this test program once more. It registers memory as CRIU's restorer does, has
// the same memory once more in the ordinary way, its twin, and does to both what a seed says.

const (
	page      = 4096
	slots     = 12
	slotPages = 700 // neither a multiple of pieces nor of huge pages
	slotSize  = slotPages * page
	slotSpan  = 16 << 20
	lazyBase  = 0x10000000000
	twinBase  = 0x20000000000 // whatever is at lazyBase+n has its twin at twinBase+n
	spareBase = 0x1000000000  // added to either where something is moved
	childSeed = "LAZYPAGES_TEST_SEED"
)

// content fills one page as it was when it was "dumped"; false: it is zeros and in no piece.
func content(seed, addr uint64, to []byte) bool {
	r := rand.New(rand.NewPCG(seed, addr))
	if r.IntN(3) == 0 {
		return false
	}
	for i := 0; i < len(to); i += 8 {
		binary.NativeEndian.PutUint64(to[i:], r.Uint64()|1)
	}
	return true
}

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
	var buf [page]byte
	for slot := range uint64(slots) {
		for i := range uint64(slotPages) {
			addr := lazyBase + slot*slotSpan + i*page
			if len(p) > 0 && addr>>20 != p[0].Addr>>20 {
				s.layout.Pieces = append(s.layout.Pieces, p)
				p = nil
			}
			if !content(seed, addr, buf[:]) {
				continue
			}
			if n := len(p); n > 0 && p[n-1].Addr+p[n-1].Length == addr {
				p[n-1].Length += page
			} else {
				p = append(p, Extent{addr, page})
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
		for at := uint64(0); at < e.Length; at += page {
			data = append(data, make([]byte, page)...)
			content(s.seed, e.Addr+at, data[len(data)-page:])
		}
	}
	return data, nil
}

func TestMain(m *testing.M) {
	if seed, err := strconv.ParseUint(os.Getenv(childSeed), 10, 64); err == nil {
		os.Exit(filled(seed))
	}
	os.Exit(m.Run())
}

// begin starts a process that is to be filled, and gives the filler with it. wait gives how the process ended.
func begin(t *testing.T, seed uint64, source *fakeSource) (f *Filler, cmd *exec.Cmd) {
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
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cmd = exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childSeed+"="+strconv.FormatUint(seed, 10))
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
	t.Cleanup(func() {
		if len(held) > 0 && f.complete() {
			t.Errorf("%d are held still", len(held))
		}
	})
	err = Receive(conn.(*net.UnixConn), func(pid, uffd int) error { return f.Add(hold(), pid, uffd) })
	if err != nil {
		t.Fatal(err)
	}
	return f, cmd
}

// TestTwin fills processes that change their memory meanwhile in all ways, and are compared with their twins.
func TestTwin(t *testing.T) {
	for seed := range uint64(6) {
		source := newFakeSource(seed)
		source.delay = time.Duration(seed%3) * 200 * time.Microsecond
		f, cmd := begin(t, seed, source)
		if seed%2 == 0 {
			f.Restored()
		} else {
			time.AfterFunc(20*time.Millisecond, f.Restored)
		}
		if err := f.Run(t.Context()); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatalf("seed %d: the process: %v", seed, err)
		}
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
	w := &twin{random: seed*2 + 1}
	r := struct{ api, features, ioctls uint64 }{api: api, features: featuresEvents}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 || ioctl(int(fd), ioctlAPI, unsafe.Pointer(&r)) != 0 {
		return 2
	}
	const ioctlRegister = 0xc020aa00
	var buf [page]byte
	for slot := range uint64(slots) {
		for i, base := range []uint64{lazyBase, twinBase} {
			addr := base + slot*slotSpan
			if mapFixed(addr, slotSize) != 0 {
				return 3
			}
			if i == 0 {
				reg := struct{ start, length, mode, ioctls uint64 }{addr, slotSize, 1, 0}
				if ioctl(int(fd), ioctlRegister, unsafe.Pointer(&reg)) != 0 {
					return 4
				}
				continue
			}
			for at := uint64(0); at < slotSize; at += page {
				if content(seed, lazyBase+slot*slotSpan+at, buf[:]) {
					copy(bytesAt(addr+at, page), buf[:])
				}
			}
		}
		w.slots[slot] = slotState{offset: slot * slotSpan, pages: slotPages}
	}
	for _, message := range []struct {
		word   uint32
		rights []byte
	}{{word: uint32(0xfffffff9)}, {1, nil}, {0, unix.UnixRights(int(fd))}, {finished, nil}} { // one is a zombie
		b := binary.NativeEndian.AppendUint32(nil, message.word)
		if message.rights != nil {
			b = b[:1]
		}
		if err := unix.Sendmsg(3, b, message.rights, nil, 0); err != nil {
			return 5
		}
	}
	_ = unix.Close(int(fd))
	return w.run(100, 2)
}

// twin does the same to memory and its twin.
type twin struct {
	random uint64
	slots  [slots]slotState
	moves  uint64
}

// slotState is a range of pages that is mapped, unless pages is 0.
type slotState struct{ offset, pages uint64 }

func (w *twin) number(n uint64) uint64 {
	w.random ^= w.random << 13
	w.random ^= w.random >> 7
	w.random ^= w.random << 17
	return w.random >> 11 % n
}

// run does a number of things and compares all in the end. Its result is an exit status.
func (w *twin) run(steps int, forks int) int {
	for range steps {
		s := &w.slots[w.number(slots)]
		if s.pages < 2 {
			continue
		}
		first := w.number(s.pages)
		count := 1 + w.number(min(s.pages-first, 90))
		at, length := s.offset+first*page, count*page
		switch w.number(9) {
		case 0: // the end of it goes
			for _, base := range []uint64{lazyBase, twinBase} {
				if _, _, errno := unix.RawSyscall(unix.SYS_MUNMAP, uintptr(base+at), uintptr(s.pages*page-first*page), 0); errno != 0 {
					return 10
				}
			}
			s.pages = first
		case 1: // all of it moves, and grows
			w.moves++
			to := spareBase + w.moves*slotSpan
			for _, base := range []uint64{lazyBase, twinBase} {
				_, _, errno := unix.RawSyscall6(unix.SYS_MREMAP, uintptr(base+s.offset), uintptr(s.pages*page), uintptr((s.pages+3)*page), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, uintptr(base+to), 0)
				if errno != 0 {
					return 11
				}
			}
			s.offset, s.pages = to, s.pages+3
		case 2, 3:
			for _, base := range []uint64{lazyBase, twinBase} {
				if _, _, errno := unix.RawSyscall(unix.SYS_MADVISE, uintptr(base+at), uintptr(length), unix.MADV_DONTNEED); errno != 0 {
					return 12
				}
			}
		case 4, 5: // written
			for i := uint64(0); i < length; i += 8 {
				v := w.number(1 << 40)
				for _, base := range []uint64{lazyBase, twinBase} {
					binary.NativeEndian.PutUint64(bytesAt(base+at+i, 8), v)
				}
			}
		case 6: // one word of a page, so that the rest of it must come
			for _, base := range []uint64{lazyBase, twinBase} {
				bytesAt(base+at, 1)[0] = 7
			}
		case 7:
			if !bytes.Equal(bytesAt(lazyBase+at, length), bytesAt(twinBase+at, length)) {
				return 20
			}
		case 8:
			if forks == 0 {
				continue
			}
			if status := w.fork(forks - 1); status != 0 {
				return status
			}
		}
	}
	for _, s := range w.slots {
		if !bytes.Equal(bytesAt(lazyBase+s.offset, s.pages*page), bytesAt(twinBase+s.offset, s.pages*page)) {
			return 21
		}
	}
	return 0
}

// fork has a child go on in another way, beside the parent for some steps.
func (w *twin) fork(forks int) int {
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return 30
	}
	if pid == 0 {
		w.random ^= 0x5555
		status := w.run(40, forks)
		unix.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(status), 0, 0)
	}
	beside := w.run(10, 0)
	var status int32
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_WAIT4, pid, uintptr(unsafe.Pointer(&status)), 0, 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 31
		}
		break
	}
	if status != 0 {
		return 100 + int(status>>8)
	}
	return beside
}

func bytesAt(addr, length uint64) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), length)
}

func mapFixed(addr, length uint64) unix.Errno {
	_, _, errno := unix.RawSyscall6(unix.SYS_MMAP, uintptr(addr), uintptr(length), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, ^uintptr(0), 0)
	return errno
}
