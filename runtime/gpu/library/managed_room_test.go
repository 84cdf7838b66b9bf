package library

import (
	"slices"
	"testing"
	"time"
)

// managedMore is a program with more managed memory than its device has, in 12 pieces of 4 MiB.
const managedMore = `
int main(void)
{
	const size_t words = 6 * MIB;
	CUdeviceptr other = 0;
	char step[64];
	begin();
	uint64_t *m = managed(48 * MIB);
	while (next(step)) {
		if (!strcmp(step, "fill")) {
			fill(m, words, 5, 3);
		} else if (!strcmp(step, "add")) {
			launch(m, words, 100);
		} else if (!strcmp(step, "check")) {
			sums(m, words, 105, 3);
		} else if (!strcmp(step, "alloc")) { // what the driver's managed memory would make room for
			MUST(cuMemAlloc_v2(&other, 16 * MIB));
			MUST(cuMemsetD8_v2(other, 7, 16 * MIB));
		} else if (!strcmp(step, "free")) {
			MUST(cuMemFree_v2(other));
		} else if (!strcmp(step, "prefetch")) {
			MUST(cuMemPrefetchAsync((CUdeviceptr)m, 48 * MIB, 0, NULL));
		} else if (!strcmp(step, "touch")) { // one word of each chunk
			for (size_t i = 0; i < words; i += MIB / 4)
				m[i] += 100;
		} else if (!strcmp(step, "touched")) {
			for (size_t i = 0; i < words; i++)
				IS(m[i], 105 + 3 * i + (i % (MIB / 4) ? 0 : 100));
		} else {
			return 1;
		}
		printf("done %s\n", step);
	}
}`

// TestManagedMore: a program has more managed memory than its device. Host and device change it, the program's memory is handed over, and managed memory makes room for another allocation.
func TestManagedMore(t *testing.T) {
	r, path := managedProgram(t, managedMore, 32)
	a := r.steps(path).app(r)
	for range 3 {
		a.does("fill")
		a.does("add")
		a.does("check")
		a.does("alloc")
		a.does("check")
		a.does("fill")
		a.does("add")
		pieces, files := a.take()
		if len(pieces) == 0 || len(pieces) > 7 { // of 4 MiB each; the device has 32 MiB
			t.Errorf("%d pieces", len(pieces))
		}
		a.ask("touch") // what has had no room on the device is the host's now; all else is waited for
		time.Sleep(50 * time.Millisecond)
		a.back(pieces, files)
		a.says("done touch")
		a.does("touched")
		a.does("add")
		few, files := a.take() // with 4 pieces of other memory
		a.back(few, files)
		a.does("add") // what has no room gets its place again
		a.does("free")
		a.does("prefetch")
		many, files := a.take()
		a.back(many, files)
		if len(many) <= len(few)-4 {
			t.Errorf("%d pieces where there is more room, %d before", len(many), len(few)-4)
		}
	}
}

// TestManagedAbreast: a program prefers the host for its managed memory. The host uses the memory while a kernel runs, and a child of the program cannot touch it.
func TestManagedAbreast(t *testing.T) {
	r, path := managedProgram(t, `
int main(void)
{
	begin();
	uint64_t *m = managed(8 * MIB);
	MUST(cuMemAdvise((CUdeviceptr)m, 8 * MIB, 3, -1)); // preferred location: CPU
	fill(m, MIB, 1, 1);
	launch_later(m, MIB / 2, 10, 500);
	double begun = now();
	m[MIB / 2] = 7;
	IS(m[MIB - 1], MIB);
	IS(now() - begun < 0.4, 1);
	MUST(cuCtxSynchronize());
	sums(m, MIB / 2, 11, 1);
	IS(m[MIB / 2], 7);
	int status;
	pid_t child = fork();
	if (!child)
		_exit(m[0]); // a fault, as with the driver
	IS(waitpid(child, &status, 0), child);
	IS(WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGSEGV);
	MUST(cuMemFree_v2((CUdeviceptr)m));
	printf("good\n");
}`, 64)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedOnHost: a container asks for managed memory on the host. A kernel waits for what the host writes there.
func TestManagedOnHost(t *testing.T) {
	r, path := managedProgram(t, `
static void *write_late(void *word)
{
	usleep(200000);
	*(volatile uint64_t *)word = 41;
	return NULL;
}
int main(void)
{
	void *module;
	CUfunction wait_for;
	pthread_t thread;
	begin();
	MUST(cuModuleLoadData(&module, "fake_wait"));
	MUST(cuModuleGetFunction(&wait_for, module, "fake_wait"));
	for (size_t bytes = MIB / 2; bytes <= 8 * MIB; bytes *= 16) { // in a chunk with others, and one with chunks of its own
		uint64_t *m = managed(bytes), one = 1;
		size_t words = 1;
		void *arguments[] = {&m, &words, &one};
		m[1] = 0;
		MUST(cuLaunchKernel(wait_for, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
		MUST(pthread_create(&thread, NULL, write_late, m));
		MUST(cuCtxSynchronize());
		IS(m[0], 42);
		pthread_join(thread, NULL);
	}
	printf("good\n");
}`, 64)
	r.Env = append(r.Env, ManagedOnHost)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// managedGPUs is a program that works on managed memory with two GPUs in turn.
const managedGPUs = `
int main(void)
{
	const size_t words = MIB;
	CUcontext second;
	char step[64];
	begin();
	uint64_t *m = managed(8 * MIB);
	MUST(cuMemAdvise((CUdeviceptr)m + 4 * MIB, 4 * MIB, 3, 1)); // preferred location: the second
	MUST(cuCtxCreate_v2(&second, 0, 1));
	MUST(cuMemPrefetchAsync((CUdeviceptr)m, 8 * MIB, 1, NULL));
	IS(cuMemAdvise((CUdeviceptr)m, MIB, 3, 2), 101);
	uint64_t *n = managed(4 * MIB); // of the second
	while (next(step)) {
		if (!strcmp(step, "work")) {
			fill(m, words, 1, 1);
			fill(n, words / 2, 2, 2);
			for (int i = 0; i < 4; i++) {
				MUST(cuCtxSetCurrent(i % 2 ? second : context));
				launch(m, words, 1);
				launch(n, words / 2, 1);
				MUST(cuCtxSynchronize());
				m[0] += 1;
				n[0] += 1;
			}
		} else if (!strcmp(step, "check")) {
			IS(m[0], 9);
			IS(n[0], 10);
			m[0] -= 4;
			n[0] -= 4;
			sums(m, words, 5, 1);
			sums(n, words / 2, 6, 2);
		} else {
			return 1;
		}
		printf("done %s\n", step);
	}
}`

// TestManagedGPUs: two GPUs change the same memory, which is then handed over. If neither GPU reaches the other's memory, all of it is memory of the host.
func TestManagedGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		orders []string
		pieces []int // the devices of those that there are, 4 MiB each
	}{"abreast": {nil, []int{0, 1, 1}}, "apart": {[]string{"cuDeviceCanAccessPeer * error 101 always"}, nil}} {
		t.Run(name, func(t *testing.T) {
			r, path := managedProgram(t, managedGPUs, 64, 64)
			r.Order(test.orders...)
			a := r.steps(path).app(r)
			for range 3 {
				a.does("work")
				pieces, files := a.take()
				var devices []int
				for _, p := range pieces {
					devices = append(devices, slices.Index(r.Devices, p.Device))
				}
				if slices.Sort(devices); !slices.Equal(devices, test.pieces) {
					t.Errorf("%+v", pieces)
				}
				a.back(pieces, files)
				a.does("check")
			}
		})
	}
}

// TestManagedWithdrawFails has the driver refuse to unmap memory of the host, so that the program's memory is not handed over. The program goes on, and its memory is handed over the next time.
func TestManagedWithdrawFails(t *testing.T) {
	r, path := managedProgram(t, managedMore, 32)
	a := r.steps(path).app(r)
	a.does("fill")
	a.does("add")
	p := a.dial()
	r.Order("cuMemUnmap * error 999")
	if err := p.Close(t.Context(), patient); err == nil {
		t.Error("the gate was closed")
	}
	r.Order()
	a.must(p.HangUp())
	a.does("check")
	a.does("fill")
	a.does("add")
	pieces, files := a.take()
	a.back(pieces, files)
	a.does("check")
}
