// Managed memory and managed variables of fakeapp that the host and the device change by turns, and system calls that read and write the memory. A thread does it all the time, with a handler for SIGSEGV of the program's own.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART ((size_t)4096)

enum { RUNNING, ON_HOST, ON_DEVICE };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards all of these
static uint64_t *memory, *other; // words; word number i of memory is value + i
static size_t words;
static uint64_t value, rounds;
static CUfunction add;
static CUcontext context;
static int pipes[2];
static int park, parked; // where the thread is to stop, and where it has stopped

static char *bad; // an address that may not be touched
static sigjmp_buf away;
static volatile sig_atomic_t caught;

static void handle(int signal, siginfo_t *info, void *unused)
{
	(void)unused;
	if (info->si_addr != bad)
		die("a fault that is not the program's", signal);
	caught++;
	siglongjmp(away, 1);
}

// fault has the program's own handler called.
static void fault(void)
{
	sig_atomic_t before = caught;

	if (!sigsetjmp(away, 1))
		*(volatile char *)bad = 1;
	if (caught != before + 1)
		die("the program's handler was not called", caught);
}

// compare returns 0, or -1 where memory is not as it was written last.
static int compare(void)
{
	for (size_t i = 0; i < words; i++)
		if (memory[i] != value + i)
			return -1;
	return 0;
}

// variables are those of variables.cubin (variables.cu), and turns how often its kernel has run.
extern const char variables_cubin[];
__asm__(".section .rodata\n.balign 16\nvariables_cubin: .incbin \"variables.cubin\"\n.previous");
enum { SUMS = 1000, MARKS = (3 << 20) / 8 };
static struct { uint64_t *turns, *sums, *marks, **where; } variables;
static CUfunction change;
static uint64_t turns;

static void *variable(void *module, const char *name, size_t bytes)
{
	CUdeviceptr pointer;
	size_t found;

	must("cuModuleGetGlobal_v2", cuda.cuModuleGetGlobal_v2(&pointer, &found, module, name));
	if (found != bytes)
		die(name, found);
	return (void *)pointer;
}

static void load_variables(void)
{
	void *module;

	must("cuModuleLoadData", cuda.cuModuleLoadData(&module, variables_cubin));
	must("cuModuleGetFunction", cuda.cuModuleGetFunction(&change, module, "fake_variables"));
	variables.turns = variable(module, "fake_turns", 8);
	variables.sums = variable(module, "fake_sums", 8 * SUMS);
	variables.marks = variable(module, "fake_marks", 8 * MARKS);
	variables.where = variable(module, "fake_where", 8);
}

// compare_variables returns 0, or -1 if a variable has a wrong value. After each run of the kernel, the host adds 1 to each word of sums.
static int compare_variables(void)
{
	if (*variables.turns != 7 + 3 * turns || *variables.where != (turns ? variables.turns : NULL))
		return -1;
	for (size_t i = 0; i < SUMS; i++)
		if (variables.sums[i] != (i < 2 ? i + 1 : 0) + turns * (i + 1))
			return -1;
	for (size_t i = 0; i < MARKS; i++)
		if (variables.marks[i] != turns * i)
			return -1;
	return 0;
}

static void change_variables(void)
{
	must("cuLaunchKernel", cuda.cuLaunchKernel(change, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){NULL}, NULL));
	must("cuCtxSynchronize", cuda.cuCtxSynchronize());
	for (size_t i = 0; i < SUMS; i++)
		variables.sums[i]++;
	turns++;
}

static void on_host(void)
{
	for (size_t i = 0; i < words; i++)
		memory[i]++;
	value++;
}

static void on_device(void)
{
	size_t n = words;
	uint64_t one = 1;
	void *arguments[] = {&memory, &n, &one};

	must("cuLaunchKernel", cuda.cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	if (options.preferred)
		must("cuCtxSynchronize", cuda.cuCtxSynchronize());
	value++;
}

// pass has a part pass through a pipe into other memory.
static void pass(void)
{
	size_t at = rounds * 997 % (words - PART / 8);

	if (write(pipes[1], memory + at, PART) != (ssize_t)PART || read(pipes[0], other + at, PART) != (ssize_t)PART)
		die("read or write of managed memory", errno);
	if (memcmp(memory + at, other + at, PART))
		die("what has passed through a pipe is damaged", rounds);
}

static void stop(int side)
{
	while (park == side) {
		parked = side;
		pthread_mutex_unlock(&lock);
		usleep(1000);
		pthread_mutex_lock(&lock);
	}
	parked = RUNNING;
}

static void *alternate(void *unused)
{
	(void)unused;
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
	for (;; usleep(1000)) {
		pthread_mutex_lock(&lock);
		if (compare())
			die("managed memory is damaged", rounds);
		if (compare_variables())
			die("managed variables are damaged", rounds);
		change_variables();
		on_host();
		stop(ON_HOST);
		fault();
		on_device();
		stop(ON_DEVICE);
		pass();
		rounds++;
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

void alternate_start(int mib, CUcontext with, CUmemoryPool pool)
{
	struct sigaction handler = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
	CUdeviceptr one, second;
	pthread_t thread;
	void *module;

	context = with;
	words = ((size_t)mib << 20) / 8;
	must("cuMemAllocManaged", cuda.cuMemAllocManaged(&one, 8 * words, 1));
	if (pool)
		must("cuMemAllocFromPoolAsync", cuda.cuMemAllocFromPoolAsync(&second, 8 * words, pool, NULL));
	else
		must("cuMemAllocManaged", cuda.cuMemAllocManaged(&second, 8 * words, 1));
	if (options.preferred)
		must("cuMemAdvise", cuda.cuMemAdvise(one, 8 * words, 3, -1)); // preferred location: CPU
	memory = (uint64_t *)one;
	other = (uint64_t *)second;
	load_variables();
	must("cuModuleLoadData", cuda.cuModuleLoadData(&module, "fake_add"));
	must("cuModuleGetFunction", cuda.cuModuleGetFunction(&add, module, "fake_add"));
	bad = mmap(NULL, PART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bad == MAP_FAILED || pipe(pipes) || sigaction(SIGSEGV, &handler, NULL))
		die("managed memory", errno);
	for (size_t i = 0; i < words; i++)
		memory[i] = i;
	if (pthread_create(&thread, NULL, alternate, NULL))
		die("pthread_create", 0);
}

int alternate_park(const char *where)
{
	int want = !strcmp(where, "host") ? ON_HOST : !strcmp(where, "device") ? ON_DEVICE : RUNNING, done = 0;

	while (!done) {
		pthread_mutex_lock(&lock);
		park = want;
		done = parked == want || want == RUNNING;
		pthread_mutex_unlock(&lock);
		usleep(500);
	}
	return 0;
}

unsigned long long alternate_rounds(void) { return __atomic_load_n(&rounds, __ATOMIC_RELAXED); }

// alternate_check leaves memory where it is unless the thread has stopped for that: what it reads, the host gets.
int alternate_check(void)
{
	int r;

	pthread_mutex_lock(&lock);
	r = compare() ? -1 : compare_variables();
	pthread_mutex_unlock(&lock);
	return r;
}
