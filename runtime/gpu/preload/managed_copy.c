// This file copies chunks of managed memory, by several threads at once: one thread copies host memory at a fraction of what the link carries.
#define _GNU_SOURCE
#include "managed.h"
#include "context.h"
#include "counter.h"
#include "gate.h"
#include "thread.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

// COPIERS is how many threads copy at once: the caller's, and threads of the library's own. Measured on an H200 with 16 cores, GB/s to the device and to new pages: 1 copier 8.5 and 3.4,
// 2 15.7 and 6.4, 4 30 and 13, 8 45 and 23. The driver's managed memory has 7.2 and 7.3.
#define COPIERS 4
// CONTEXTS is in how many contexts a copier keeps a stream and a buffer.
#define CONTEXTS 8
#define NON_BLOCKING 1 // CU_STREAM_NON_BLOCKING
#define PORTABLE 1     // CU_MEMHOSTALLOC_PORTABLE

// means are the stream and the pinned buffer by which a copier copies in a context. The driver frees both when the context ends.
struct means { CUcontext context; CUstream stream; char *pinned; };
static struct means means[COPIERS][CONTEXTS];

// work is the copy that all copiers are at. Each takes the next chunk when it is done with one. If a copier has failed, next is past the last chunk.
static struct { enum way way; CUcontext context; const struct transfer *all; size_t n, next; unsigned busy; CUresult result; } work;
static uint32_t begun, ended;
static unsigned started, helpers; // threads that were started, and threads that run by now

static CUresult make(struct means *m, CUcontext context)
{
	CUresult r = driver.cuStreamCreate(&m->stream, NON_BLOCKING);

	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuMemHostAlloc((void **)&m->pinned, CHUNK_BYTES, PORTABLE);
	if (r == CUDA_SUCCESS && madvise(m->pinned, CHUNK_BYTES, MADV_DONTFORK)) { // a child would share it
		driver.cuMemFreeHost(m->pinned);
		r = CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (r != CUDA_SUCCESS)
		driver.cuStreamDestroy_v2(m->stream);
	else
		m->context = context;
	return r;
}

// means_in returns the stream and the buffer of a copier in the current context, and makes them if there are none. A copier that has them in CONTEXTS other contexts frees those in one of these first.
static struct means *means_in(unsigned copier, CUcontext context, CUresult *r)
{
	struct means *all = means[copier], *m = NULL;

	for (unsigned i = 0; i < CONTEXTS; i++) {
		if (all[i].context == context)
			return &all[i];
		if (!all[i].context && !m)
			m = &all[i];
	}
	if (!m) {
		m = all;
		driver.cuStreamDestroy_v2(m->stream);
		driver.cuMemFreeHost(m->pinned);
		m->context = NULL;
	}
	*r = make(m, context);
	return *r == CUDA_SUCCESS ? m : NULL;
}

static CUresult copy_one(const struct means *m, const struct transfer *t)
{
	CUresult r;

	if (work.way == TO_DEVICE) {
		memcpy(m->pinned, t->host, CHUNK_BYTES);
		r = driver.cuMemcpyHtoDAsync_v2((CUdeviceptr)t->at, m->pinned, CHUNK_BYTES, m->stream);
		return r == CUDA_SUCCESS ? driver.cuStreamSynchronize(m->stream) : r;
	}
	r = driver.cuMemcpyDtoHAsync_v2(m->pinned, (CUdeviceptr)t->at, CHUNK_BYTES, m->stream);
	if (r == CUDA_SUCCESS)
		r = driver.cuStreamSynchronize(m->stream);
	if (r == CUDA_SUCCESS)
		memcpy(t->host, m->pinned, CHUNK_BYTES);
	return r;
}

// take returns a chunk that no copier has taken, or NULL.
static const struct transfer *take(void)
{
	size_t i = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);

	return i < work.n ? &work.all[i] : NULL;
}

static CUresult copy_with_driver(unsigned copier)
{
	const struct transfer *t;
	struct means *m;
	CUresult r;
	struct entered e;

	r = context_enter(&e, work.context);
	if (r != CUDA_SUCCESS)
		return r;
	m = means_in(copier, work.context, &r);
	while (r == CUDA_SUCCESS && (t = take()))
		r = copy_one(m, t);
	context_leave(&e);
	return r;
}

// copy_some copies until nothing is left, or until a copier has failed.
static void copy_some(unsigned copier)
{
	const struct transfer *t;
	CUresult r = CUDA_SUCCESS;

	if (work.way == WITHIN_HOST)
		while ((t = take()))
			memcpy(t->host, t->at, CHUNK_BYTES);
	else
		r = copy_with_driver(copier);
	if (r == CUDA_SUCCESS)
		return;
	__atomic_store_n(&work.next, work.n, __ATOMIC_RELAXED);
	__atomic_store_n(&work.result, r, __ATOMIC_RELAXED);
}

static void *help(void *unused)
{
	unsigned copier = __atomic_add_fetch(&helpers, 1, __ATOMIC_RELAXED);

	(void)unused;
	prctl(PR_SET_NAME, "cryo-copier");
	gate_own();
	for (uint32_t seen = 0;; seen++) {
		counter_wait(&begun, seen);
		copy_some(copier);
		if (!__atomic_sub_fetch(&work.busy, 1, __ATOMIC_ACQ_REL))
			counter_add(&ended);
	}
	return NULL;
}

// start_helpers starts the threads ahead of the first copy of several chunks, and returns how many there are. A thread that started later would take what is over for what it is to do.
static unsigned start_helpers(void)
{
	while (!begun && started < COPIERS - 1 && thread_with(help))
		started++;
	return started;
}

CUresult managed_copy(enum way way, CUcontext context, const struct transfer *all, size_t n)
{
	uint32_t before = ended;
	unsigned busy = n > 1 ? start_helpers() : 0;

	if (!n)
		return CUDA_SUCCESS;
	work.way = way;
	work.context = context;
	work.all = all;
	work.n = n;
	work.next = 0;
	work.busy = busy;
	work.result = CUDA_SUCCESS;
	if (busy)
		counter_add(&begun);
	copy_some(0);
	if (busy)
		counter_wait(&ended, before);
	return work.result;
}

void managed_copy_ended(CUcontext context)
{
	for (unsigned c = 0; c < COPIERS; c++)
		for (unsigned i = 0; i < CONTEXTS; i++)
			if (means[c][i].context == context)
				means[c][i].context = NULL;
}

void managed_copy_forked(void)
{
	memset(means, 0, sizeof(means));
	begun = ended = started = helpers = 0;
}
