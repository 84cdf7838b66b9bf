// Local memory: what each thread of a device has for its stack.
#define _GNU_SOURCE
#include "driver.h"
#include "orders.h"

#include <stdlib.h>

#define LEAST_STACK 16

static size_t local_bytes(size_t stack)
{
	const char *threads = getenv("FAKECUDA_LOCAL_THREADS");

	return threads ? strtoul(threads, NULL, 10) * stack : 0;
}

CUresult local_make(CUcontext context, size_t stack)
{
	CUresult r = CUDA_SUCCESS;

	if (context->local)
		memory_free(context->local);
	context->local = 0;
	if (local_bytes(stack))
		r = memory_alloc(context, context->device, local_bytes(stack), 0, &context->local);
	if (r == CUDA_SUCCESS)
		context->stack = stack;
	else if (context->alive && memory_alloc(context, context->device, local_bytes(context->stack), 0, &context->local) != CUDA_SUCCESS)
		return CUDA_ERROR_UNKNOWN; // somebody else was faster
	return r;
}

static CUresult known(int limit)
{
	if (!current)
		return CUDA_ERROR_INVALID_CONTEXT;
	return limit == CU_LIMIT_STACK_SIZE ? CUDA_SUCCESS : CUDA_ERROR_UNSUPPORTED_LIMIT;
}

CUresult cuCtxGetLimit(size_t *bytes, int limit)
{
	CUresult r = orders_own("cuCtxGetLimit");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS)
		r = known(limit);
	if (r == CUDA_SUCCESS)
		*bytes = current->stack;
	return leave(r);
}

CUresult cuCtxSetLimit(int limit, size_t bytes)
{
	CUresult r = orders_own("cuCtxSetLimit");
	int other = r == CUDA_SUCCESS ? orders_own("stack") : 0;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter_idle();
	if (r == CUDA_SUCCESS)
		r = known(limit);
	if (r == CUDA_SUCCESS && bytes < LEAST_STACK)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = streams_whole(current);
	if (r == CUDA_SUCCESS)
		r = local_make(current, other ? (size_t)other : bytes);
	return leave(r);
}
