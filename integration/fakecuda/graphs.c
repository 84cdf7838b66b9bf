// Captures of a stream into a graph, in threads of their own: most captures end in the thread that has begun them.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

// one is the capture that a command has begun, and another ends.
static struct { pthread_t thread; pthread_mutex_t changing; pthread_cond_t changed; int mode, begun, end; CUresult result; } one = {
	.changing = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
};

static CUresult begin(CUstream *stream, int mode)
{
	CUresult r;

	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
	must("cuStreamCreate", cuda.cuStreamCreate(stream, 1));
	r = cuda.cuStreamBeginCapture_v2(*stream, mode);
	return r == CUDA_SUCCESS ? cuda.cuMemsetD8Async(counter, 0xff, sizeof(ticks), *stream) : r;
}

static CUresult end(CUstream stream)
{
	CUgraph graph;
	CUresult r = cuda.cuStreamEndCapture(stream, &graph);

	must("cuStreamDestroy", cuda.cuStreamDestroy_v2(stream));
	return r;
}

static void *capture(void *unused)
{
	CUstream stream;

	(void)unused;
	one.result = begin(&stream, one.mode);
	pthread_mutex_lock(&one.changing);
	one.begun = 1;
	pthread_cond_signal(&one.changed);
	while (!one.end)
		pthread_cond_wait(&one.changed, &one.changing);
	pthread_mutex_unlock(&one.changing);
	if (one.result == CUDA_SUCCESS)
		one.result = end(stream);
	return NULL;
}

CUresult graphs_begin(int mode)
{
	one.mode = mode;
	one.begun = one.end = 0;
	if (pthread_create(&one.thread, NULL, capture, NULL))
		die("pthread_create", 0);
	pthread_mutex_lock(&one.changing);
	while (!one.begun)
		pthread_cond_wait(&one.changed, &one.changing);
	pthread_mutex_unlock(&one.changing);
	return one.result;
}

CUresult graphs_end(void)
{
	pthread_mutex_lock(&one.changing);
	one.end = 1;
	pthread_cond_signal(&one.changed);
	pthread_mutex_unlock(&one.changing);
	pthread_join(one.thread, NULL);
	return one.result;
}

// late is what has come of captures that were ended later.
static CUresult late;

static void *end_later(void *ms)
{
	CUresult r;

	usleep((uintptr_t)ms * 1000);
	r = graphs_end();
	if (r != CUDA_SUCCESS)
		__atomic_store_n(&late, r, __ATOMIC_SEQ_CST);
	return NULL;
}

CUresult graphs_end_later(unsigned long ms)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, end_later, (void *)ms))
		die("pthread_create", 0);
	pthread_detach(thread);
	return CUDA_SUCCESS;
}

CUresult graphs_late(void) { return __atomic_load_n(&late, __ATOMIC_SEQ_CST); }

static void *capture_always(void *unused)
{
	struct timespec pause = {0, 300000};
	CUstream stream;

	(void)unused;
	for (;; nanosleep(&pause, NULL)) {
		must("cuStreamBeginCapture", begin(&stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		nanosleep(&pause, NULL);
		must("cuStreamEndCapture", end(stream));
	}
	return NULL;
}

void graphs_start(int threads)
{
	pthread_t thread;

	for (int i = 0; i < threads; i++)
		if (pthread_create(&thread, NULL, capture_always, NULL))
			die("pthread_create", i);
}
