package library

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// faults is what lets a process protect its memory, also from what the kernel does for it.
func faults(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/userfaultfd", os.O_RDWR, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// region is host memory of a fakeapp.
type region struct {
	Kind                 string
	First, Bytes, Rounds uint64
}

func (a *app) regions() []region {
	a.t.Helper()
	return a.does("regions").State.Processes[0].Regions
}

// region makes one.
func (a *app) region(kind string, mib int) region {
	a.t.Helper()
	a.does(fmt.Sprintf("region %s %d", kind, mib))
	all := a.regions()
	return all[len(all)-1]
}

func (r region) span() Range { return Range{r.First, r.First + r.Bytes} }

// used is how much of ranges is there, bytes, as /proc/PID/smaps tells: the kind is Rss or Locked, for example.
func (a *app) used(kind string, r Range) (bytes uint64) {
	a.t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps", a.pid))
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	inside := false
	for s := bufio.NewScanner(f); s.Scan(); {
		var first, end uint64
		if n, _ := fmt.Sscanf(s.Text(), "%x-%x ", &first, &end); n == 2 {
			inside = first < r.End && end > r.First
		}
		if value, ok := strings.CutPrefix(s.Text(), kind+":"); ok && inside {
			n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			a.must(err)
			bytes += n << 10
		}
	}
	return bytes
}

// unwatched fails the test if any of a process's memory still has a userfaultfd, or the process a descriptor or a thread of it.
func (a *app) unwatched() {
	a.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", a.pid))
	a.must(err)
	for _, line := range strings.Split(string(text), "\n") {
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && (strings.Contains(flags, " uw") || strings.Contains(flags, " um")) {
			a.t.Errorf("memory is left with %s", flags)
		}
	}
	if n := links(a.t, a.pid, "userfaultfd"); n != 0 {
		a.t.Errorf("%d descriptors of userfaultfd are left", n)
	}
	names, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", a.pid))
	a.must(err)
	for _, e := range names {
		if comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/comm", a.pid, e.Name())); strings.TrimSpace(string(comm)) == "cryo-zeros" {
			a.t.Error("a thread is left")
		}
	}
}

func (r *rig) host() *app { return r.run("--blocks", "1") }

// TestZeros has zeros dropped from memory that nobody uses, while the door is closed and memory given.
func TestZeros(t *testing.T) {
	for _, kind := range []string{"still", "hugestill"} {
		t.Run(kind, func(t *testing.T) {
			a, f := newRig(t, 64).run("--blocks", "3"), faults(t)
			r := a.region(kind, 70)
			maps := lines(t, "/proc/%d/maps", a.pid)
			if got := a.used("Rss", r.span()); got < r.Bytes {
				t.Fatalf("%d of %d bytes are there", got, r.Bytes)
			}
			p, _ := a.dial()
			n, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient)
			a.must(err)
			a.must(p.HangUp())
			if left := a.used("Rss", r.span()); n != int64(r.Bytes) || left > 0 {
				t.Errorf("%d of %d bytes have gone, and %d are there", n, r.Bytes, left)
			}
			a.unwatched()
			if n := lines(t, "/proc/%d/maps", a.pid); n > maps {
				t.Errorf("%d mappings, %d before", n, maps)
			}
			a.regions()
			r = a.region("still", 32)
			pieces, files := a.take()
			p, _ = a.dial()
			if n, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient); err != nil || n != int64(r.Bytes) {
				t.Errorf("%d bytes have gone, %v", n, err)
			}
			a.must(p.HangUp())
			a.waits()
			a.back(pieces, files)
			a.works()
		})
	}
}

// TestZerosUsed drops zeros again and again from memory that is written to meanwhile, that comes and goes, and that a disk writes to. The program compares all
// of it, and ends where anything is not what it was.
func TestZerosUsed(t *testing.T) {
	for _, kind := range []string{"written", "huge", "locked", "churned", "direct"} {
		t.Run(kind, func(t *testing.T) {
			a, f := newRig(t, 64).host(), faults(t)
			r := a.region(kind, 48)
			p, _ := a.dial()
			maps, descriptors := lines(t, "/proc/%d/maps", a.pid), links(t, a.pid, "")
			var gone int64
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				n, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient)
				var errno unix.Errno
				if err != nil && !errors.As(err, &errno) {
					t.Fatalf("%v: %s", err, a.stderr())
				}
				if err != nil && kind != "churned" {
					t.Fatal(err)
				}
				gone += n
			}
			if gone == 0 {
				t.Error("nothing has gone")
			}
			a.unwatched()
			if n := lines(t, "/proc/%d/maps", a.pid); n > maps+2 {
				t.Errorf("%d mappings, %d before", n, maps)
			}
			eventually(t, "no more descriptors than before", func() bool { return links(t, a.pid, "") <= descriptors }) // the fake driver opens files in each call
			if kind == "locked" {
				if there, locked := a.used("Rss", r.span()), a.used("Locked", r.span()); locked < r.Bytes/2 || there < locked {
					t.Errorf("%d bytes are locked, and %d there", locked, there)
				}
			}
			before := r.Rounds
			eventually(t, "its threads go on", func() bool { return a.regions()[0].Rounds > before })
			a.works()
			t.Logf("%d MiB", gone>>20)
		})
	}
}

// TestZerosBounded gives no time for all, and asks for ranges where there is nothing of the kind.
func TestZerosBounded(t *testing.T) {
	a, f := newRig(t, 64).host(), faults(t)
	r := a.region("still", 256)
	p, _ := a.dial()
	n, err := p.DropZeros(t.Context(), []Range{r.span()}, f, time.Millisecond)
	if !errors.Is(err, unix.ETIME) || n >= int64(r.Bytes) {
		t.Errorf("%d bytes have gone, %v", n, err)
	}
	for _, test := range []Range{{1 << 20, 33 << 20}, {r.End() - 4096, r.End() + 512<<20}} {
		if _, err := p.DropZeros(t.Context(), []Range{test}, f, patient); err != nil {
			t.Errorf("%x: %v", test, err)
		}
	}
	if n, err := p.DropZeros(t.Context(), nil, f, patient); n != 0 || err != nil {
		t.Errorf("%d bytes have gone, %v", n, err)
	}
	a.unwatched()
	a.works()
}

func (r region) End() uint64 { return r.First + r.Bytes }

// TestZerosUnable gives a descriptor of something else, as a host without the device would: nothing happens.
func TestZerosUnable(t *testing.T) {
	a := newRig(t, 64).host()
	r := a.region("still", 32)
	null, err := os.Open("/dev/null")
	a.must(err)
	defer null.Close()
	p, _ := a.dial()
	if n, err := p.DropZeros(t.Context(), []Range{r.span()}, null, patient); n != 0 || !errors.Is(err, unix.ENOTTY) {
		t.Errorf("%d bytes have gone, %v", n, err)
	}
	a.must(p.HangUp())
	a.unwatched()
	a.regions()
	a.works()
}

// TestZerosShared has a child that shares all pages until they are looked at.
func TestZerosShared(t *testing.T) {
	a, f := newRig(t, 64).host(), faults(t)
	r := a.region("still", 32)
	a.does("fork")
	p, _ := a.dial()
	_, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient)
	a.must(err)
	a.must(p.HangUp())
	a.unwatched()
	for _, pid := range childrenOf(t, a.pid) {
		if n := links(t, pid, "userfaultfd"); n != 0 {
			t.Errorf("a child has %d descriptors of userfaultfd", n)
		}
	}
	a.regions()
	a.works()
}

// TestZerosLeave finds nothing open in the process as soon as it is left.
func TestZerosLeave(t *testing.T) {
	a, f := newRig(t, 64).host(), faults(t)
	r := a.region("still", 32)
	before := links(t, a.pid, "socket:")
	for range 100 {
		p, _ := a.dial()
		_, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient)
		a.must(err)
		p.Leave(t.Context())
		if n := links(t, a.pid, "socket:"); n > before {
			t.Fatalf("%d sockets, %d before", n, before)
		}
	}
}

// TestZerosKilled kills the process meanwhile: nothing of it stays, be it in the kernel.
func TestZerosKilled(t *testing.T) {
	f := faults(t)
	for i := range 5 {
		a := newRig(t, 64).host()
		r := a.region("written", 256)
		p, _ := a.dial()
		time.AfterFunc(time.Duration(5*i)*time.Millisecond, a.kill)
		for {
			if _, err := p.DropZeros(t.Context(), []Range{r.span()}, f, patient); err != nil {
				break
			}
		}
		select {
		case <-a.ended:
		case <-time.After(patient):
			t.Fatal("it does not end")
		}
	}
}

// TestZerosHostile is told what no library says.
func TestZerosHostile(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, payload := range [][]byte{nil, make([]byte, 15), {0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}} {
		_, err := pretend(t, saying{payload: payload}).DropZeros(t.Context(), []Range{{1 << 20, 2 << 20}}, null, time.Second)
		var wrong *ProtocolError
		if !errors.As(err, &wrong) {
			t.Errorf("%x: %v", payload, err)
		}
	}
}
