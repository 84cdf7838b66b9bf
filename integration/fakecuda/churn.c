// A thread that writes to memory of its own all the time. Before that it looks whether each part is as it was written last, so that no byte of another moment goes unnoticed.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PART ((size_t)256 << 10)
#define CALLS_EACH 4 // by which a part is written: it may be stopped in between

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr memory;
static CUcontext context;
static uint64_t want[PART / 8], got[PART / 8];
static uint32_t *times; // each part was written; guarded by lock
static size_t parts;

static void fill(size_t part)
{
	uint64_t z = part << 32 | times[part];

	for (size_t i = 0; i < PART / 8; i++) {
		z = z * 6364136223846793005u + 1442695040888963407u;
		want[i] = z;
	}
}

// look returns 0, -1 where a part is not as it was written last, or what the driver says.
static int look(size_t part)
{
	CUresult r = cuda.cuMemcpyDtoH_v2(got, memory + part * PART, PART);

	if (r != CUDA_SUCCESS)
		return r;
	fill(part);
	return memcmp(want, got, PART) ? -1 : 0;
}

static void put(size_t part)
{
	times[part]++;
	fill(part);
	for (size_t i = 0; i < CALLS_EACH; i++)
		must("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(memory + part * PART + i * (PART / CALLS_EACH), (char *)want + i * (PART / CALLS_EACH), PART / CALLS_EACH));
}

static void *churn(void *unused)
{
	struct timespec pause = {0, 1000000};
	unsigned seed = 1;

	(void)unused;
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
	for (;; nanosleep(&pause, NULL)) {
		double x = rand_r(&seed) / (RAND_MAX + 1.0);
		size_t part = parts * x * x * x * x; // some are written all the time, others hardly ever

		pthread_mutex_lock(&lock);
		if (look(part))
			die("memory that is written all the time is damaged", part);
		put(part);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

void churn_start(int mib, CUcontext with)
{
	pthread_t thread;

	context = with;
	parts = ((size_t)mib << 20) / PART;
	times = calloc(parts, sizeof(*times));
	must("cuMemAlloc", cuda.cuMemAlloc_v2(&memory, parts * PART));
	for (size_t part = 0; part < parts; part++)
		put(part);
	if (pthread_create(&thread, NULL, churn, NULL))
		die("pthread_create", 0);
}

int churn_check(void)
{
	int r = 0;

	pthread_mutex_lock(&lock);
	for (size_t part = 0; part < parts && !r; part++)
		r = look(part);
	pthread_mutex_unlock(&lock);
	return r;
}
