package library

import "testing"

// TestManagedHandlers: a program's own handlers for SIGSEGV go on working, whenever and however they are installed, and are not called for managed memory.
func TestManagedHandlers(t *testing.T) {
	r, path := managedProgram(t, `
static sigjmp_buf away;
static volatile int called;
static void *bad;
static void jump(int s, siginfo_t *info, void *context)
{
	(void)context;
	IS(s, SIGSEGV);
	IS((uintptr_t)info->si_addr, (uintptr_t)bad);
	called++;
	siglongjmp(away, 1);
}
static void mend(int s)
{
	IS(s, SIGSEGV);
	called++;
	mprotect(bad, 4096, PROT_READ | PROT_WRITE);
}
static void touch_bad(void)
{
	called = 0;
	if (!sigsetjmp(away, 1))
		*(volatile int *)bad = 1;
	IS(called, 1);
}
static uint64_t *m;
static void *blocked(void *unused)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	IS(m[1], 4); // a fault kills a thread with SIGSEGV blocked
	return unused;
}
static void in_handler(int s)
{
	IS(s, SIGUSR1);
	IS(m[2], 5);
	called++;
}
int main(int argc, char **argv)
{
	struct sigaction jumps = {.sa_sigaction = jump, .sa_flags = SA_SIGINFO}, old, all = {.sa_handler = in_handler};
	stack_t small = {.ss_sp = malloc(MINSIGSTKSZ + 4096), .ss_size = MINSIGSTKSZ + 4096};
	pthread_t thread;
	(void)argv;
	begin();
	bad = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigaltstack(&small, NULL);
	MUST(sigaction(SIGSEGV, &jumps, NULL)); // before there is managed memory
	m = managed(4 * MIB);
	launch(m, MIB / 2, 3);
	IS(m[0], 3);
	for (int i = 0; i < 3; i++)
		touch_bad();
	MUST(sigaction(SIGSEGV, NULL, &old));
	IS((uintptr_t)old.sa_sigaction, (uintptr_t)jump);
	IS((uintptr_t)signal(SIGSEGV, mend), (uintptr_t)jump); // afterwards
	launch(m, MIB / 2, 1);
	touch_bad();
	IS(*(int *)bad, 1);
	IS((uintptr_t)signal(SIGSEGV, SIG_DFL), (uintptr_t)mend);
	MUST(pthread_create(&thread, NULL, blocked, NULL));
	MUST(pthread_join(thread, NULL));
	sigfillset(&all.sa_mask);
	MUST(sigaction(SIGUSR1, &all, NULL));
	launch(m, MIB / 2, 1);
	called = 0;
	raise(SIGUSR1);
	IS(called, 1);
	printf("good\n");
	if (argc > 1) {
		mprotect(bad, 4096, PROT_NONE);
		*(volatile int *)bad = 1; // by default
		printf("alive\n");
	}
}`, 64)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
	s := r.steps(path, "die")
	s.says("good")
	if err := s.cmd.Wait(); err == nil || err.Error() != "signal: segmentation fault" && err.Error() != "signal: segmentation fault (core dumped)" {
		t.Errorf("a fault without a handler: %v", err)
	}
}

// TestManagedSystemCalls reads and writes managed memory by system calls, wherever it is, while another thread launches kernels that take it away.
func TestManagedSystemCalls(t *testing.T) {
	r, path := managedProgram(t, `
static uint64_t *m, *counter;
static volatile int stop;
static void *launching(void *unused)
{
	MUST(cuCtxSetCurrent(context));
	for (int i = 0; i < 20 || !stop; i++)
		launch(counter, 1, 1);
	return unused;
}
int main(void)
{
	size_t bytes = 3 * MIB;
	char name[] = "/tmp/managedXXXXXX";
	int fd = mkstemp(name), pipes[2];
	pthread_t thread;
	begin();
	unlink(name);
	m = managed(2 * bytes);
	counter = managed(8);
	for (int round = 0; round < 2; round++) {
		fill(m, bytes / 8, 5, 1);
		launch(m, bytes / 8, 1);
		IS(pwrite(fd, m, bytes, 0), bytes); // from the device
		launch(m, bytes / 8, 1);
		IS(pread(fd, m + bytes / 8, bytes, 0), bytes); // where nothing was
		sums(m + bytes / 8, bytes / 8, 6, 1);
		sums(m, bytes / 8, 7, 1);
		launch(m, bytes / 4, 1);
		struct iovec parts[] = {{m, 8}, {m + bytes / 8, 8}};
		IS(pwritev(fd, parts, 2, 0), 16);
		IS(preadv(fd, parts, 2, 8), 16);
		IS(m[0], 7); // as the other part begins
		MUST(pipe(pipes));
		for (int i = 0; i < 50; i++) {
			if (i % 10 == 0)
				launch(m, bytes / 4, 1);
			IS(write(pipes[1], m + 1 + i * 1000, 4096), 4096);
			IS(read(pipes[0], m + bytes / 8 + i * 2000, 4096), 4096);
			IS(m[bytes / 8 + i * 2000], m[1 + i * 1000]);
		}
		FILE *f = fdopen(dup(fd), "w+");
		rewind(f);
		fill(m, bytes / 8, 9, 1);
		launch(m, bytes / 8, 1);
		IS(fwrite(m, 8, bytes / 8, f), bytes / 8);
		rewind(f);
		launch(m, bytes / 8, 1);
		IS(fread(m + bytes / 8, 8, bytes / 8, f), bytes / 8);
		sums(m + bytes / 8, bytes / 8, 10, 1);
		fclose(f);
		if (!round)
			MUST(pthread_create(&thread, NULL, launching, NULL));
	}
	stop = 1;
	MUST(pthread_join(thread, NULL));
	IS(counter[0] >= 20, 1);
	IS(read(fd, (void *)1, 1) == -1 && errno == EFAULT, 0); // at the end of the file
	IS(pread(fd, (void *)8, 8, 0), -1ull);
	IS(errno, EFAULT);
	printf("good\n");
}`, 64)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedForked: a child reads what the host has, and a fault of it on what the device has is a fault. The parent goes on.
func TestManagedForked(t *testing.T) {
	r, path := managedProgram(t, `
static int child(uint64_t *m, int other)
{
	int status;
	pid_t pid;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		if (other)
			_exit(m[MIB / 4]);
		for (size_t i = 0; i < MIB / 4; i++)
			if (m[i] != 6 + i)
				_exit(2);
		m[0] = 1;
		_exit(7);
	}
	IS(waitpid(pid, &status, 0), pid);
	return status;
}
int main(void)
{
	begin();
	uint64_t *m = managed(4 * MIB);
	for (int i = 0; i < 3; i++) {
		fill(m, MIB / 4, 5, 1);
		launch(m, MIB / 2, 1);
		sums(m, MIB / 4, 6, 1);
		int status = child(m, 0); // it writes: a page that the host may only read is not written to by a child
		IS(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), SIGSEGV);
		m[0] = 6;
		status = child(m, 0);
		IS(WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), 7);
		status = child(m, 1);
		IS(WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGSEGV);
		sums(m, MIB / 4, 6, 1);
		launch(m, MIB / 2, 1);
		sums(m, MIB / 4, 7, 1);
		IS(m[MIB / 4], 2 * i + 2);
	}
	printf("good\n");
}`, 64)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedThreads has threads that each use allocations of their own, large and small, on both sides, side by side in the same chunks. Some have streams captured.
func TestManagedThreads(t *testing.T) {
	r, path := managedProgram(t, `
static void *work(void *number)
{
	unsigned seed = (uintptr_t)number;
	MUST(cuCtxSetCurrent(context));
	for (int round = 0; round < 30; round++) {
		size_t words = round % 5 ? 64 + rand_r(&seed) % 1000 : 3 * MIB / 8;
		uint64_t *m = managed(8 * words), first = rand_r(&seed);
		fill(m, words, first, 1);
		launch(m, words, 10);
		if (round % 2)
			launch_later(m, words, 5, 2);
		sums(m, words, first + (round % 2 ? 15 : 10), 1);
		m[words - 1] = 8;
		launch(m, words, 1);
		IS(m[words - 1], 9);
		IS(m[0], first + (round % 2 ? 16 : 11));
		MUST(cuMemFree_v2((CUdeviceptr)m));
	}
	return NULL;
}
int main(void)
{
	pthread_t threads[6];
	begin();
	for (size_t i = 0; i < 6; i++)
		MUST(pthread_create(&threads[i], NULL, work, (void *)(i + 1)));
	for (int i = 0; i < 6; i++)
		MUST(pthread_join(threads[i], NULL));
	printf("good\n");
}`, 256)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedSmall makes 100,000 small allocations, which are where others are not, and frees some.
func TestManagedSmall(t *testing.T) {
	r, path := managedProgram(t, `
#define COUNT 100000
static uint64_t *all[COUNT];
static size_t size(int i) { return 8 + i * 37 % 2000; }
int main(void)
{
	begin();
	for (int i = 0; i < COUNT; i++) {
		all[i] = managed(size(i));
		IS((uintptr_t)all[i] % 256, 0);
		all[i][0] = i;
		all[i][size(i) / 8 - 1] += i;
	}
	for (int i = 0; i < COUNT; i += 1000)
		launch(all[i], 1, 5);
	for (int i = 0; i < COUNT; i++)
		IS(all[i][0], (size(i) < 16 ? 2 * i : i) + (i % 1000 ? 0 : 5));
	for (int i = 0; i < COUNT; i += 2)
		MUST(cuMemFree_v2((CUdeviceptr)all[i]));
	for (int i = 0; i < COUNT; i += 2) {
		all[i] = managed(size(i));
		all[i][0] = i;
	}
	for (int i = 0; i < COUNT; i++) {
		CUdeviceptr base;
		size_t bytes;
		MUST(cuMemGetAddressRange_v2(&base, &bytes, (CUdeviceptr)all[i] + size(i) - 1));
		IS(base, (CUdeviceptr)all[i]);
		IS(bytes, size(i));
		if (i % 1000 && size(i) >= 16)
			IS(all[i][0], i);
	}
	printf("good\n");
}`, 1024)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedAdvised asks for what was advised, prefetches and attaches.
func TestManagedAdvised(t *testing.T) {
	r, path := managedProgram(t, `
static int of(int attribute, uint64_t *m, size_t bytes)
{
	int value = 99;
	MUST(cuMemRangeGetAttribute(&value, sizeof(value), attribute, (CUdeviceptr)m, bytes));
	return value;
}
int main(void)
{
	begin();
	uint64_t *m = managed(8 * MIB);
	CUdeviceptr p = (CUdeviceptr)m;
	int by[3], value;
	size_t sizes[] = {sizeof(value), sizeof(by)};
	void *data[] = {&value, by};
	int attributes[] = {2, 3};
	IS(of(1, m, 8 * MIB), 0);
	IS(of(2, m, 8 * MIB), (unsigned long long)-2);
	MUST(cuMemAdvise(p, 8 * MIB, 1, 0)); // read mostly
	MUST(cuMemAdvise(p, 4 * MIB, 3, -1)); // preferred location: CPU
	MUST(cuMemAdvise(p + 4 * MIB, 4 * MIB, 3, 0));
	MUST(cuMemAdvise(p, 8 * MIB, 5, 0)); // accessed by
	MUST(cuMemAdvise(p, 8 * MIB, 5, -1));
	IS(of(1, m, 8 * MIB), 1);
	IS(of(2, m, MIB), (unsigned long long)-1);
	IS(of(2, m + MIB / 2, MIB), 0);
	IS(of(2, m, 8 * MIB), (unsigned long long)-2);
	MUST(cuMemRangeGetAttributes(data, sizes, attributes, 2, p, MIB));
	IS(value, (unsigned long long)-1);
	IS(by[0], 0);
	IS(by[1], (unsigned long long)-1);
	IS(by[2], (unsigned long long)-2);
	MUST(cuMemAdvise(p, 8 * MIB, 6, 0));
	MUST(cuMemAdvise(p, 8 * MIB, 2, 0));
	IS(of(3, m, MIB), (unsigned long long)-1);
	IS(of(1, m, MIB), 0);
	IS(cuMemAdvise(p, 9 * MIB, 1, 0), 1);
	IS(cuMemAdvise(p, MIB, 7, 0), 1);
	IS(cuMemAdvise(p, MIB, 3, 1), 101);
	fill(m, MIB, 1, 1);
	MUST(cuMemPrefetchAsync(p, 8 * MIB, 0, NULL));
	IS(of(4, m, 8 * MIB), 0);
	sums(m, MIB, 1, 1);
	launch(m, MIB, 1);
	MUST(cuMemPrefetchAsync(p, 2 * MIB, -1, NULL));
	IS(of(4, m, MIB), (unsigned long long)-1);
	sums(m, MIB, 2, 1);
	IS(cuMemPrefetchAsync(p, 9 * MIB, 0, NULL), 1);
	IS(cuMemPrefetchAsync(p, MIB, 1, NULL), 101);
	MUST(cuStreamAttachMemAsync(NULL, p, 0, 4));
	MUST(cuStreamAttachMemAsync(NULL, p, 8 * MIB, 1));
	IS(cuStreamAttachMemAsync(NULL, p + 8, 0, 1), 1);
	IS(cuStreamAttachMemAsync(NULL, p, 0, 3), 1);
	printf("good\n");
}`, 64)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}

// TestManagedOfDriver: with the variable the driver makes managed memory, as without the library.
func TestManagedOfDriver(t *testing.T) {
	r := newRig(t, 64)
	r.Env = append(r.Env, ManagedByDriver)
	k := newHelper(t, r)
	a := r.run("--managed")
	a.works()
	if _, err := k.Lock(t.Context(), []int{a.PID}, patient); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Checkpoint(t.Context(), []int{a.PID}); err != nil || got[0].Code != 801 {
		t.Errorf("%+v, %v", got, err)
	}
}
