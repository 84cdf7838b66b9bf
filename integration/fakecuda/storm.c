// Threads that use the driver all the time, each with memory of its own.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static unsigned long long rounds;
static CUcontext context;

unsigned long long storm_rounds(void) { return __atomic_load_n(&rounds, __ATOMIC_RELAXED); }

#define SPAN (64 * 1024)

// round_of allocates, writes, copies, compares and frees. Every third allocation is small, and every fifth of the others has several pieces.
static void round_of(unsigned seed)
{
	size_t bytes = seed % 3 ? (size_t)(seed % 5 ? 2 : 6) << 20 : SPAN * 2;
	static __thread unsigned char sent[SPAN], got[SPAN];
	void *arguments[] = {&(unsigned){seed % 2}};
	CUdeviceptr memory;

	memset(sent, seed, sizeof(sent));
	must("cuMemAlloc", cuda.cuMemAlloc_v2(&memory, bytes));
	must("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(memory, sent, SPAN));
	must("cuLaunchKernel", cuda.cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	must("cuMemcpyDtoD", cuda.cuMemcpyDtoD_v2(memory + bytes - SPAN, memory, SPAN));
	if (options.captures) // which do not survive what waits for the context
		must("cuStreamSynchronize", cuda.cuStreamSynchronize(NULL));
	else
		must("cuCtxSynchronize", cuda.cuCtxSynchronize());
	must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(got, memory + bytes - SPAN, SPAN));
	if (memcmp(sent, got, SPAN))
		die("device memory of a thread is damaged", seed);
	must("cuMemFree", cuda.cuMemFree_v2(memory));
}

static void *storm(void *number)
{
	unsigned seed = (unsigned)(uintptr_t)number * 7919;

	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
	for (;; seed++) {
		struct timespec pause = {0, seed % 4 * 1000000L}; // so that threads are stopped outside of calls, too

		round_of(seed);
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

void storm_start(int threads, CUcontext with)
{
	pthread_t thread;

	context = with;
	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread, NULL, storm, (void *)(uintptr_t)i))
			die("pthread_create", i);
}

static void *poll(void *unused)
{
	const struct timespec pause = {0, 1000000};

	(void)unused;
	for (;; nanosleep(&pause, NULL))
		cuda.cuStreamQuery(NULL);
	return NULL;
}

void poll_start(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, poll, NULL))
		die("pthread_create", 0);
}

static uint64_t *launched; // of each process

void reduce_begin(void)
{
	launched = mmap(NULL, sizeof(*launched) * MAX_PROCESSES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (launched == MAP_FAILED)
		die("mmap", 0);
}

// reduce does not rest, and waits for two of three kernels.
static void *reduce(void *unused)
{
	struct meeting m = {options.processes, number, launched};
	void *arguments[] = {&m};

	(void)unused;
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
	for (unsigned round = 0;; round++) {
		for (int call = number ? options.reduce : 1; call > 0; call--)
			cuda.cuStreamQuery(NULL);
		must("cuLaunchKernel", cuda.cuLaunchKernel(NULL, 1, 1, 2, 1, 1, 1, 0, NULL, arguments, NULL));
		cuda.cuStreamQuery(NULL);
		if (round % 3)
			must("cuCtxSynchronize", cuda.cuCtxSynchronize());
		__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

void reduce_start(CUcontext with)
{
	pthread_t thread;

	context = with;
	if (pthread_create(&thread, NULL, reduce, NULL))
		die("pthread_create", 0);
}
