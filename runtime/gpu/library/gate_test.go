package library

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// compile makes a program, or a library of a name, of C.
func compile(t *testing.T, dir, name, source string, flags ...string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path+".c", []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	flags = append([]string{"-O1", "-g", "-fno-omit-frame-pointer", "-I", "../../../integration/fakecuda", "-o", path, path + ".c"}, flags...)
	if out, err := exec.Command("gcc", flags...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v: %s", err, out)
	}
	return path
}

// output runs a program with the library and the fake driver, and gives what it says.
func (r *rig) output(path string, args ...string) string {
	r.t.Helper()
	c := exec.Command(path, args...)
	c.Env = []string{"FAKECUDA_DIR=" + r.Dir, "LD_PRELOAD=" + libraryPath, "LD_LIBRARY_PATH=" + fakeDir}
	out, err := c.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestUnwind goes up the stack from a callback that the driver makes, through the gate, as profilers and exceptions do.
func TestUnwind(t *testing.T) {
	r := newRig(t, 64)
	path := compile(t, t.TempDir(), "unwind", `
#include "cuda.h"
#include <stdio.h>
#include <unwind.h>
static _Unwind_Reason_Code frame(struct _Unwind_Context *c, void *found)
{
	extern int main(void);
	uintptr_t start = (uintptr_t)_Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(c));
	if (start == (uintptr_t)main) *(int *)found = 1;
	return _URC_NO_REASON;
}
static void called(void *found)
{
	size_t available, total;
	_Unwind_Backtrace(frame, found);
	cuMemGetInfo_v2(&available, &total); // a call in a call
}
int main(void)
{
	int found = 0;
	cuInit(0);
	int r = cuLaunchHostFunc(NULL, called, &found);
	printf("%d %d\n", r, found);
	return 0;
}
`, "-L", fakeDir, "-l:libcuda.so.1")
	if got := r.output(path); got != "0 1\n" {
		t.Errorf("%q", got)
	}
}

// TestNames looks for functions as programs do that want to know what there is.
func TestNames(t *testing.T) {
	r := newRig(t, 64)
	path := compile(t, t.TempDir(), "names", `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
void *malloc(size_t n)
{
	static void *(*next)(size_t);
	if (!next) next = dlsym(RTLD_NEXT, "malloc");
	return next(n);
}
int main(void)
{
	void *before = dlsym(RTLD_DEFAULT, "cuInit"), *library, *a, *b;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	a = dlsym(library, "cuInit");
	b = dlsym(library, "cuInit");
	// The driver, once it is there, has one of these and not the other.
	printf("%d %d %d %d %d %d\n", !before, a && a == b, !dlsym(library, "cuEventQuery"), !!dlsym(RTLD_DEFAULT, "cuCtxSynchronize"),
		!dlsym(RTLD_DEFAULT, "cuEventQuery"), !!malloc(1));
	return 0;
}
`)
	if got := r.output(path); got != "1 1 1 1 1 1\n" {
		t.Errorf("%q", got)
	}
}

// TestBoundPast has a part of a program call the driver without the gate.
func TestBoundPast(t *testing.T) {
	r := newRig(t, 64)
	dir := t.TempDir()
	part := compile(t, dir, "part.so", `
#include "cuda.h"
int part(void) { return cuCtxSynchronize(); }
`, "-shared", "-fPIC", "-L", fakeDir, "-l:libcuda.so.1")
	path := compile(t, dir, "past", `
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	int (*init)(unsigned) = dlsym(library, "cuInit"), (*part)(void);
	init(0);
	part = dlsym(dlopen(argv[1], RTLD_NOW | (argc > 2 ? RTLD_DEEPBIND : 0)), "part");
	part();
	puts("ready");
	fflush(stdout);
	pause();
}
`)
	for _, deep := range []bool{false, true} {
		args := []string{part}
		if deep {
			args = append(args, "deep")
		}
		c := exec.Command(path, args...)
		c.Env = []string{"FAKECUDA_DIR=" + r.Dir, "LD_PRELOAD=" + libraryPath, "LD_LIBRARY_PATH=" + fakeDir}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		if _, err := out.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		p, err := Dial(t.Context(), c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		h, err := p.Hello()
		_ = p.HangUp()
		if err != nil || strings.Contains(h.Unable, "directly") != deep {
			t.Errorf("deep %v: %+v, %v", deep, h, err)
		}
	}
}

// TestFenced hands over where the kernel has no membarrier.
func TestFenced(t *testing.T) {
	r := newRig(t, 256)
	r.Wrapper = compile(t, t.TempDir(), "wrapper", `
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {4, filter};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) || syscall(SYS_membarrier, 0, 0, 0) == 0)
		return 1;
	execv(argv[1], argv + 1);
	perror("execv");
	return 1;
}
`)
	a := r.run("--blocks", "5,9", "--storm", "4")
	for range 5 {
		pieces, files := a.take()
		a.back(pieces, files)
	}
	a.works()
}

// TestWrapper has another library, which wraps a function of the driver by RTLD_NEXT, behind this one and ahead of it: the program works, and
// nothing is handed over where calls may pass by.
func TestWrapper(t *testing.T) {
	r := newRig(t, 64)
	dir := t.TempDir()
	wrapper := compile(t, dir, "wrapper.so", `
#define _GNU_SOURCE
#include "cuda.h"
#include <dlfcn.h>
#include <stdio.h>
FAKE CUresult cuCtxSynchronize(void)
{
	static CUresult (*next)(void);
	static int depth;
	CUresult r;
	if (!next)
		next = dlsym(RTLD_NEXT, "cuCtxSynchronize");
	if (++depth > 1)
		return 999;
	puts("wrapped");
	r = next();
	depth--;
	return r;
}
`, "-shared", "-fPIC")
	path := compile(t, dir, "wrapped", `
#include "cuda.h"
#include <stdio.h>
#include <unistd.h>
int main(void)
{
	cuInit(0);
	printf("%d\n", cuCtxSynchronize());
	puts("ready");
	fflush(stdout);
	pause();
}
`, "-L", fakeDir, "-l:libcuda.so.1")
	for preload, unable := range map[string]bool{libraryPath + ":" + wrapper: true, wrapper + ":" + libraryPath: true} {
		c := exec.Command(path)
		c.Env = []string{"FAKECUDA_DIR=" + r.Dir, "LD_PRELOAD=" + preload, "LD_LIBRARY_PATH=" + fakeDir}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		said := make([]byte, 64)
		n, _ := out.Read(said)
		if got := string(said[:n]); got != "wrapped\n0\nready\n" {
			t.Errorf("%s: it says %q", preload, got)
		}
		p, err := Dial(t.Context(), c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		h, err := p.Hello()
		_ = p.HangUp()
		if err != nil || strings.Contains(h.Unable, "another library") != unable {
			t.Errorf("%s: %+v, %v", preload, h, err)
		}
	}
}

// TestOpenFiles has a program that may not have as many descriptors as it may have to keep.
func TestOpenFiles(t *testing.T) {
	r := newRig(t, 64)
	r.Wrapper = compile(t, t.TempDir(), "limited", `
#include <sys/resource.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct rlimit few = {258, 258};
	(void)argc;
	setrlimit(RLIMIT_NOFILE, &few);
	execv(argv[1], argv + 1);
	return 1;
}
`)
	a := r.run("--blocks", "5") // two pieces, and its counter is the driver's
	pieces, files := a.take()
	a.back(pieces, files)
	a = r.run("--blocks", "5,2")
	p, h := a.dial()
	var unable *UnableError
	if err := p.Close(t.Context(), patient); !strings.Contains(h.Unable, "open files") || !errors.As(err, &unable) || unable.Reason != h.Unable {
		t.Fatalf("%+v, %v", h, err)
	}
	a.Must(p.HangUp())
	a.whole()
}
