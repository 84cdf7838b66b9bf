package library

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stander is a program whose threads call the driver all the time and count their calls.
type stander struct {
	t      *testing.T
	p      *Process
	counts []byte // mapped: u32 of each thread
}

const standingThreads = 3

// startStanding starts one that, before it begins, launches a kernel of so many milliseconds.
func startStanding(t *testing.T, kernel string) *stander {
	r := newRig(t, 64)
	dir := t.TempDir()
	path := compile(t, dir, "standing", `
#include "cuda.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
static unsigned *counts;
static void *count(void *number)
{
	for (;;) {
		cuStreamQuery(NULL);
		__atomic_add_fetch(&counts[(unsigned long)number], 1, __ATOMIC_SEQ_CST);
	}
	return NULL;
}
int main(int argc, char **argv)
{
	CUcontext context;
	unsigned ms = atoi(argv[2]);
	void *arguments[] = {&ms};
	pthread_t thread;
	(void)argc;
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, open(argv[1], O_RDWR), 0);
	if (cuInit(0) || cuCtxCreate_v2(&context, 0, 0) || cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL))
		return 1;
	for (unsigned long i = 0; i < THREADS; i++)
		pthread_create(&thread, NULL, count, (void *)i);
	puts("ready");
	fflush(stdout);
	pause();
}
`, fmt.Sprintf("-DTHREADS=%d", standingThreads), "-pthread", "-L", fakeDir, "-l:libcuda.so.1")
	file, err := os.Create(filepath.Join(dir, "counts"))
	if err == nil {
		err = file.Truncate(4096)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &stander{t: t}
	if s.counts, err = unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(path, file.Name(), kernel)
	c.Env = []string{"FAKECUDA_DIR=" + r.Dir, "LD_PRELOAD=" + libraryPath, "LD_LIBRARY_PATH=" + fakeDir}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if s.p, err = Dial(t.Context(), c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.p.HangUp() })
	s.goesOn()
	return s
}

// now returns how often each thread has called.
func (s *stander) now() (counts []int) {
	for i := range standingThreads {
		counts = append(counts, int(binary.LittleEndian.Uint32(s.counts[4*i:])))
	}
	return counts
}

// calls returns how many calls a thread has made between two counts, at least and at most.
func calls(before, now []int) (fewest, most int) {
	fewest = now[0] - before[0]
	for i := range now {
		fewest, most = min(fewest, now[i]-before[i]), max(most, now[i]-before[i])
	}
	return fewest, most
}

// still returns the counts once they do not grow any more.
func (s *stander) still() []int {
	s.t.Helper()
	last := s.now()
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); {
		time.Sleep(30 * time.Millisecond) // longer than a thread takes from its call to its count
		now := s.now()
		if slices.Equal(now, last) {
			return now
		}
		last = now
	}
	s.t.Fatal("the program does not stand still")
	return nil
}

// goesOn waits until all threads have called again.
func (s *stander) goesOn() {
	s.t.Helper()
	before := s.now()
	for deadline := time.Now().Add(patient); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		now := s.now()
		if !slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool { return now[i] == before[i] }) {
			return
		}
	}
	s.t.Fatalf("threads stand: %v, and before %v", s.now(), before)
}

// TestStandStep has each thread of a program that stands make one call, again and again, and then all they want. A thread that is on its way to the gate makes none.
func TestStandStep(t *testing.T) {
	s := startStanding(t, "0")
	if err := s.p.Stand(t.Context(), patient, 1); err != nil { // no thread stands yet
		t.Fatal(err)
	}
	first := s.still()
	before := first
	for round := 0; ; round++ {
		if fewest, _ := calls(first, before); fewest >= 5 {
			break
		}
		if err := s.p.Stand(t.Context(), patient, 1); err != nil || round == 100 {
			t.Fatalf("round %d: %v, %v", round, before, err)
		}
		now := s.still()
		if _, most := calls(before, now); most > 1 {
			t.Fatalf("threads have called %v times, and %v before one step", now, before)
		}
		before = now
	}
	before = s.still()
	if err := s.p.Stand(t.Context(), patient, 0); err != nil {
		t.Fatal(err)
	}
	if now := s.still(); !slices.Equal(now, before) {
		t.Fatalf("without a step the threads have called %v times, and before %v", now, before)
	}
	if err := s.p.Open(); err != nil {
		t.Fatal(err)
	}
	s.goesOn()
}

// TestStandBusy keeps the gate of a program closed while its devices work, and opens it: by Open, and by the end of the conversation.
func TestStandBusy(t *testing.T) {
	for name, open := range map[string]func(*Process) error{"open": (*Process).Open, "hang up": (*Process).HangUp} {
		t.Run(name, func(t *testing.T) {
			s := startStanding(t, "3600000")
			for range 3 {
				var busy *BusyError
				if err := s.p.Stand(t.Context(), time.Millisecond, 0); !errors.As(err, &busy) || busy.Capturing {
					t.Fatal(err)
				}
			}
			before := s.still()
			if err := s.p.Stand(t.Context(), time.Millisecond, 1); err == nil {
				t.Fatal("its devices are idle")
			}
			now := s.still()
			if _, most := calls(before, now); most != 1 {
				t.Fatalf("the threads have called %v times, and %v before one call each", now, before)
			}
			if err := open(s.p); err != nil {
				t.Fatal(err)
			}
			s.goesOn()
		})
	}
}
