package library

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/image/record"
)

// managedSource is what programs with managed memory have in common: steps that a line each asks for.
const managedSource = `
#define _GNU_SOURCE
#include "cuda.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define MUST(x) do { int r_ = (x); if (r_) { printf("line %d: %s: %d\n", __LINE__, #x, r_); exit(1); } } while (0)
#define IS(x, want) do { unsigned long long x_ = (x), w_ = (want); if (x_ != w_) { printf("line %d: %s is %llu, want %llu\n", __LINE__, #x, x_, w_); exit(1); } } while (0)
#define MIB ((size_t)1 << 20)
static CUcontext context;
static CUfunction add, later;
static void begin(void)
{
	void *module;
	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(cuInit(0));
	MUST(cuCtxCreate_v2(&context, 0, 0));
	MUST(cuModuleLoadData(&module, "fake_add"));
	MUST(cuModuleGetFunction(&add, module, "fake_add"));
	MUST(cuModuleLoadData(&module, "fake_later"));
	MUST(cuModuleGetFunction(&later, module, "fake_later"));
}
static uint64_t *managed(size_t bytes) { CUdeviceptr p; MUST(cuMemAllocManaged(&p, bytes, 1)); return (uint64_t *)p; }
static int try_launch(uint64_t *at, size_t words, uint64_t value)
{
	void *arguments[] = {&at, &words, &value};
	return cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
}
static void launch(uint64_t *at, size_t words, uint64_t value) { MUST(try_launch(at, words, value)); }
static void launch_later(uint64_t *at, size_t words, uint64_t value, unsigned ms)
{
	void *arguments[] = {&at, &words, &value, &ms};
	MUST(cuLaunchKernel(later, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
}
static void sums(volatile uint64_t *at, size_t words, uint64_t first, uint64_t step)
{
	for (size_t i = 0; i < words; i += 509)
		IS(at[i], first + step * i);
}
static void fill(volatile uint64_t *at, size_t words, uint64_t first, uint64_t step)
{
	for (size_t i = 0; i < words; i++)
		at[i] = first + step * i;
}
// next reads the name of the program's next step; 0: there is none.
static int next(char step[64])
{
	if (!fgets(step, 64, stdin))
		return 0;
	step[strcspn(step, "\n")] = 0;
	return 1;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
`

// managedProgram compiles a program and returns a rig for it.
func managedProgram(t *testing.T, source string, sizes ...int) (*rig, string) {
	t.Helper()
	r := newRig(t, sizes...)
	return r, compile(t, t.TempDir(), "managed", managedSource+source, "-pthread", "-L", fakeDir, "-l:libcuda.so.1")
}

// programEnv is the environment of a program that heeds the host's orders.
func (r *rig) programEnv() []string {
	return append([]string{"FAKECUDA_DIR=" + r.Dir, "FAKECUDA_ORDERS=" + filepath.Join(r.Dir, "orders"), "LD_LIBRARY_PATH=" + fakeDir}, r.Env...)
}

// steps is a program that answers each line with one.
type steps struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (r *rig) steps(path string, args ...string) *steps {
	r.t.Helper()
	c := exec.Command(path, args...)
	c.Env = r.programEnv()
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return &steps{r.t, c, in, bufio.NewReader(out)}
}

// says fails the test unless the program's next line is this.
func (s *steps) says(want string) {
	s.t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		s.t.Fatalf("%q (%v), want %q", line, err, want)
	}
}

// ask has the program do a step.
func (s *steps) ask(step string) {
	s.t.Helper()
	if _, err := fmt.Fprintln(s.in, step); err != nil {
		s.t.Fatal(err)
	}
}

func (s *steps) does(step string) {
	s.t.Helper()
	s.ask(step)
	s.says("done " + step)
}

// runs fails the test unless a program that does all by itself ends well.
func (r *rig) runs(path string, args ...string) string {
	r.t.Helper()
	c := exec.Command(path, args...)
	c.Env = r.programEnv()
	out, err := c.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// app is the program as one whose memory is handed over.
func (s *steps) app(r *rig) *managedApp { return &managedApp{s, r} }

type managedApp struct {
	*steps
	rig *rig
}

func (a *managedApp) dial() *Process {
	a.t.Helper()
	p, err := Dial(a.t.Context(), a.cmd.Process.Pid)
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = p.HangUp() })
	return p
}

func (a *managedApp) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// take makes the program hand its memory over. back returns it: the same memory, or other memory with the same bytes.
func (a *managedApp) take() (pieces []record.GPUPiece, files []*os.File) {
	a.t.Helper()
	p := a.dial()
	a.must(p.Close(a.t.Context(), patient))
	pieces, err := p.Table()
	a.must(err)
	files, err = p.Give()
	a.must(err)
	a.t.Cleanup(func() { closeFiles(files) })
	a.must(p.Release())
	a.must(p.HangUp())
	return pieces, files
}

func (a *managedApp) back(pieces []record.GPUPiece, files []*os.File) {
	a.t.Helper()
	p := a.dial()
	if h, err := p.Hello(); err != nil || h.State != Given {
		a.t.Fatalf("%+v, %v", h, err)
	}
	a.must(p.Attach(a.t.Context(), pieces, files))
	closeFiles(files)
	// Another test may start a process at that moment. Until that process begins its program, it has these files, too, and the device has less room.
	var left int
	for range 20 {
		var err error
		left, err = p.Own(a.t.Context())
		a.must(err)
		if left == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if left != 0 {
		a.t.Fatalf("%d pieces are not its own", left)
	}
	a.must(p.Open())
	a.must(p.HangUp())
}

// TestManaged alternates between host and device: each sees what the other has written, whatever the state of a chunk was.
func TestManaged(t *testing.T) {
	r, path := managedProgram(t, `
int main(void)
{
	size_t bytes = 10 * MIB + 4096, words = bytes / 8;
	CUdeviceptr device, base;
	size_t size;
	unsigned is;
	begin();
	uint64_t *m = managed(bytes), *other = malloc(bytes);
	IS(cuMemAllocManaged(&base, 0, 1), 1); // CUDA_ERROR_INVALID_VALUE
	IS(cuMemAllocManaged(&base, 8, 7), 1);
	MUST(cuMemAlloc_v2(&device, 8 * MIB));
	sums(m, words, 0, 0); // untouched, read
	launch(m, words, 5); // partly untouched, partly zero
	sums(m, words, 5, 0); // device, read
	launch(m, words, 1); // both
	fill(m + words / 2, words / 2, 7, 1); // device, written
	sums(m, words / 2, 6, 0);
	fill(m, 3, 1, 0); // both, written
	sums(m + words / 2, words / 2, 7, 1); // host
	launch(m, words, 2); // host and both
	MUST(cuCtxSynchronize());
	IS(m[0], 3);
	IS(m[3], 8);
	sums(m + words / 2, words / 2, 9, 1);
	// Copies: of the host's side, the device's, and both.
	fill(m, words, 100, 3);
	MUST(cuMemcpyHtoD_v2(device, m, 8 * MIB)); // it is the host's
	sums(m, MIB, 100, 3);
	MUST(cuMemcpyDtoH_v2(other, device, 8 * MIB));
	sums(other, MIB, 100, 3);
	fill(m, 10, 0, 0);
	MUST(cuMemcpyDtoH_v2(m, device, 8 * MIB)); // to the host's address
	sums(m, words, 100, 3);
	fill(other, words, 1, 1);
	MUST(cuMemcpyHtoD_v2((CUdeviceptr)(m + 1000), other, 4 * MIB)); // a part of chunks
	sums(m + 1000, MIB / 2, 1, 1);
	IS(m[999], 100 + 3 * 999);
	sums(m + 1000 + MIB / 2, MIB / 4, 100 + 3 * (1000 + MIB / 2), 3);
	MUST(cuMemcpyDtoH_v2(other, (CUdeviceptr)m, MIB));
	sums(other + 1000, MIB / 8 - 1000, 1, 1);
	MUST(cuMemcpyDtoD_v2((CUdeviceptr)(m + MIB), (CUdeviceptr)m, MIB));
	IS(m[MIB + 1000], 1);
	m[MIB] = 1;
	MUST(cuMemsetD8_v2((CUdeviceptr)m, 0x11, bytes));
	IS(m[0], 0x1111111111111111);
	IS(m[words - 1], 0x1111111111111111);
	// What is asked about it.
	MUST(cuMemGetAddressRange_v2(&base, &size, (CUdeviceptr)(m + words - 1)));
	IS(base, (CUdeviceptr)m);
	IS(size, bytes);
	MUST(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, (CUdeviceptr)m));
	IS(is, 1);
	MUST(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, device));
	IS(is, 0);
	IS(cuMemGetAddressRange_v2(&base, &size, (CUdeviceptr)m + bytes) != 0, 1); // behind the last byte
	IS(cuMemUnmap((CUdeviceptr)m, 2 * MIB), 1);
	IS(cuMemFree_v2((CUdeviceptr)(m + 1)), 1);
	IS(cuMemFreeAsync((CUdeviceptr)m, NULL) != 0, 1);
	MUST(cuMemFree_v2((CUdeviceptr)m));
	IS(cuMemFree_v2((CUdeviceptr)m), 1);
	IS(try_launch(m, 1, 1), 700);
	// A kernel that runs is waited for.
	m = managed(4 * MIB);
	double t = now();
	launch_later(m, MIB / 2, 9, 200);
	IS(now() - t < 0.19, 1);
	IS(m[MIB / 4], 9);
	IS(now() - t >= 0.2, 1);
	MUST(cuCtxDestroy_v2(context)); // with its memory
	printf("good\n");
}`, 256)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}
