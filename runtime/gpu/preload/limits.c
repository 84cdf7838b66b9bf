#define _GNU_SOURCE
#include "limits.h"
#include "context.h"
#include "deadline.h"
#include "gate.h"

// LEAST is what a context has around the driver's checkpoint, bytes. Lower is not worth it: there are 66 MiB left of 264.
#define LEAST ((size_t)256)

// PATIENCE is for what takes some milliseconds, ns: nothing is at work that the driver would wait for.
#define PATIENCE INT64_C(5000000000)

// lowered are the contexts that have less than the program knows. Those for which there is no place keep what they have. It is the library's
// thread's, or deadline_run's while that runs.
static struct lowered { CUcontext context; size_t bytes; } lowered[64];
static unsigned count;

static CUresult lower(CUcontext context)
{
	size_t bytes, left;

	if (count == sizeof(lowered) / sizeof(*lowered) || driver.cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS || bytes <= LEAST)
		return CUDA_SUCCESS;
	lowered[count++] = (struct lowered){context, bytes};
	// What was refused has no effect, unless the driver says that it has.
	if (driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, LEAST) != CUDA_SUCCESS && driver.cuCtxGetLimit(&left, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS && left == bytes)
		count--;
	return CUDA_SUCCESS;
}

static CUresult lower_all(void) { return contexts_each(lower); }

void limits_lower(void) { deadline_run(lower_all, now_ns() + PATIENCE); }

// set_back does not believe a success: the driver may give less than it was asked for.
static CUresult set_back(const struct lowered *l)
{
	size_t bytes;
	CUresult r = driver.cuCtxSetCurrent(l->context);

	if (r == CUDA_SUCCESS)
		r = driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, l->bytes);
	if (r == CUDA_SUCCESS)
		r = driver.cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE);
	return r == CUDA_SUCCESS && bytes < l->bytes ? CUDA_ERROR_INVALID_VALUE : r;
}

static CUresult set_back_all(void)
{
	CUresult r = CUDA_SUCCESS;

	while (count && (r = set_back(&lowered[count - 1])) == CUDA_SUCCESS)
		count--;
	driver.cuCtxSetCurrent(NULL);
	return r;
}

CUresult limits_set_back(void)
{
	int64_t deadline = now_ns() + PATIENCE;

	if (!deadline_wait(deadline)) // for limits_lower
		return CUDA_ERROR_NOT_READY;
	return count ? deadline_run(set_back_all, deadline) : CUDA_SUCCESS;
}

void limits_forked(void) { count = 0; }
