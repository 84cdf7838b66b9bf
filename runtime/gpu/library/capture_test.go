package library

import (
	"errors"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestCaptureKeepsGateOpen asks for a hand-over while a stream is being captured: neither the capture nor the program suffers.
func TestCaptureKeepsGateOpen(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"0", "1", "2"} {
		for _, bind := range []string{"direct", "dlsym", "proc"} {
			t.Run(mode+" "+bind, func(t *testing.T) {
				a := newRig(t, 64).run("--blocks", "5", "--bind", bind)
				a.Does("capture " + mode)
				p, _ := a.dial()
				var busy *BusyError
				if err := p.Close(t.Context(), 50*time.Millisecond); !errors.As(err, &busy) || !busy.Capturing {
					t.Fatal(err)
				}
				a.works()
				ended := make(chan error, 1)
				go func() {
					time.Sleep(100 * time.Millisecond)
					got, err := a.Ask("captured", patient)
					if err == nil && !got.OK {
						err = errors.New(got.Error)
					}
					ended <- err
				}()
				a.Must(p.Close(t.Context(), patient)) // as soon as it has ended
				select {
				case err := <-ended:
					a.Must(err)
				case <-time.After(100 * time.Millisecond):
				}
				a.Must(p.HangUp())
				a.whole()
				pieces, files := a.take()
				a.back(pieces, files)
				a.works()
			})
		}
	}
}

// TestCapturesAndStorm hands over ten times under threads that capture, allocate and free all the time.
func TestCapturesAndStorm(t *testing.T) {
	a := newRig(t, 1024).run("--blocks", "5,9", "--storm", "4", "--captures", "3")
	first := a.Does("check").State.Processes[0].Rounds
	for range 6 {
		pieces, files := a.take()
		a.back(pieces, files)
	}
	if last := a.Does("check").State.Processes[0].Rounds; last <= first {
		t.Errorf("its threads stand still at round %d", last)
	}
	a.works()
}

// TestCaptureLeftByFork forks in the middle of a capture: the child has none.
func TestCaptureLeftByFork(t *testing.T) {
	a := newRig(t, 64).run("--blocks", "5")
	a.Does("capture 2")
	a.Does("fork 1")
	a.Does("captured")
	pieces, files := a.take()
	a.back(pieces, files)
	a.works()
}

// TestCaptureAsTheDriver runs programs that allocate and free while they capture: with the library they see what they see without it.
func TestCaptureAsTheDriver(t *testing.T) {
	r := newRig(t, 64)
	path := compile(t, t.TempDir(), "capture", `
#include "cuda.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static CUcontext context;
static CUstream stream, other;
static CUdeviceptr kept, early, late;
static void say(const char *what, int r) { printf("%s %d\n", what, r); }
static CUresult begin(int mode) { return cuStreamBeginCapture_v2(stream, mode); }
static CUresult end(void) { CUgraph g; return cuStreamEndCapture(stream, &g); }
static size_t available(void) { size_t a, b; cuMemGetInfo_v2(&a, &b); return a; }
static void *elsewhere(void *f)
{
	cuCtxSetCurrent(context);
	((void (*)(void))f)();
	return NULL;
}
static void in_thread(void (*f)(void))
{
	pthread_t t;
	pthread_create(&t, NULL, elsewhere, (void *)f);
	pthread_join(t, NULL);
}
static void frees(void) { say("free elsewhere", cuMemFree_v2(early)); }
static void ends(void) { say("end elsewhere", end()); }
static void begins_own(void)
{
	CUgraph g;
	say("begin own", cuStreamBeginCapture_v2_ptsz(NULL, 0));
	say("free", cuMemFree_v2(early));
	say("end own", cuStreamEndCapture_ptsz(NULL, &g));
}
static void leaves_own(void) { say("begin own", cuStreamBeginCapture_v2_ptsz(NULL, 1)); }
int main(int argc, char **argv)
{
	CUstreamCaptureMode mode = 2;
	size_t most;
	cuInit(0);
	cuCtxCreate_v2(&context, 0, 0);
	cuStreamCreate(&stream, 1);
	cuStreamCreate(&other, 1);
	say("alloc", cuMemAlloc_v2(&kept, 4 << 20));
	most = available();
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));

	puts("global: neither to allocate nor to free");
	say("begin", begin(0));
	say("begin again", begin(0));
	say("alloc", cuMemAlloc_v2(&late, 4 << 20));
	say("end", end());
	say("begin", begin(0));
	say("free", cuMemFree_v2(early));
	say("end", end());
	say("begin", begin(0));
	in_thread(frees);
	say("end", end());

	puts("of one thread: others may");
	say("begin", begin(1));
	in_thread(frees);
	say("free again", cuMemFree_v2(early));
	say("end", end());
	say("begin", begin(1));
	in_thread(frees);
	say("end", end());

	puts("relaxed: all may");
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	say("begin", begin(2));
	say("alloc", cuMemAlloc_v2(&late, 4 << 20));
	say("set", cuMemsetD8_v2(late, 7, 4 << 20));
	say("free", cuMemFree_v2(early));
	say("free again", cuMemFree_v2(early));
	say("end", end());
	say("free", cuMemFree_v2(late));
	say("all is back", available() == most);

	puts("a thread may be relaxed, as cudaMalloc of PyTorch and NCCL is");
	say("begin", begin(0));
	cuThreadExchangeStreamCaptureMode(&mode);
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	cuThreadExchangeStreamCaptureMode(&mode);
	say("free", cuMemFree_v2(early));
	say("end", end());
	say("free", cuMemFree_v2(early));
	say("all is back", available() == most);

	puts("from another thread it ends only if relaxed");
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	say("begin", begin(1));
	in_thread(ends);
	in_thread(frees);
	say("end", end());
	say("begin", begin(2));
	in_thread(ends);
	say("end", end());

	puts("a stream is destroyed, a context too, or a thread ends");
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	say("begin", begin(0));
	say("destroy", cuStreamDestroy_v2(stream));
	say("free", cuMemFree_v2(early));
	say("all is back", available() == most);
	cuStreamCreate(&stream, 1);
	cuCtxCreate_v2(&context, 0, 0);
	say("create", cuStreamCreate(&other, 1));
	say("begin", cuStreamBeginCapture_v2(other, 0));
	say("destroy", cuCtxDestroy_v2(context));
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	say("free", cuMemFree_v2(early));
	say("all is back", available() == most);
	cuCtxGetCurrent(&context);
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	in_thread(begins_own);
	in_thread(frees);
	in_thread(leaves_own);
	usleep(20000); // until the kernel knows nothing of it any more
	say("alloc", cuMemAlloc_v2(&early, 4 << 20));
	say("free", cuMemFree_v2(early));

	puts("freed in a stream's order");
	cuStreamCreate(&other, 1);
	for (int own = 0; own < 2; own++) {
		CUresult (*f)(CUdeviceptr, CUstream) = own ? cuMemFreeAsync_ptsz : cuMemFreeAsync;
		say("alloc", cuMemAlloc_v2(&early, 4 << 20));
		say("free", f(early, own ? NULL : other));
		say("free again", f(early, own ? NULL : other));
		say("all is back", available() == most);
		say("alloc", cuMemAlloc_v2(&early, 4 << 20));
		say("alloc", cuMemAlloc_v2(&late, 4 << 20));
		say("begin", begin(0));
		say("free of the graph", f(early, stream));
		say("free", f(late, own ? NULL : other));
		say("end", end());
		say("free", f(early, own ? NULL : other));
		say("all is back", available() == most);
		say("free small", f(0x1000, other));
	}
	say("set", cuMemsetD8_v2(kept, 1, 4 << 20));
	return 0;
}
`, "-pthread", "-L", fakeDir, "-l:libcuda.so.1")
	c := exec.Command(path)
	c.Env = []string{"FAKECUDA_DIR=" + r.Dir, "LD_LIBRARY_PATH=" + fakeDir}
	c.Stderr = os.Stderr
	want, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := r.output(path); got != string(want) {
		t.Errorf("with the library:\n%s\nwithout:\n%s", got, want)
	}
}
