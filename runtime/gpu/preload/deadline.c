#define _GNU_SOURCE
#include "deadline.h"
#include "gate.h"
#include "thread.h"

#include <stddef.h>
#include <sys/prctl.h>
#include <time.h>

// There is one thread at a time: one that is late is waited for before there is another.
static CUresult (*function)(void);
static CUresult result;
static int running;

static void *run(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "cryo-wait"); // the host looks for the one that is called cryo-gpu
	gate_own();
	result = function();
	__atomic_store_n(&running, 0, __ATOMIC_RELEASE);
	return NULL;
}

int deadline_wait(int64_t deadline)
{
	struct timespec pause = {0, 50000};

	while (__atomic_load_n(&running, __ATOMIC_ACQUIRE)) {
		if (now_ns() > deadline)
			return 0;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 2000000)
			pause.tv_nsec *= 2;
	}
	return 1;
}

CUresult deadline_run(CUresult (*f)(void), int64_t deadline)
{
	if (!deadline_wait(deadline))
		return CUDA_ERROR_NOT_READY;
	function = f;
	running = 1;
	if (!thread_with(run)) {
		running = 0;
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return deadline_wait(deadline) ? result : CUDA_ERROR_NOT_READY;
}

void deadline_forked(void) { running = 0; }
