#define _GNU_SOURCE
#include "context.h"
#include "able.h"
#include "capture.h"
#include "hooks.h"
#include "ipc.h"
#include "managed.h"
#include "peers.h"
#include "range.h"
#include "thread.h"

#include <pthread.h>
#include <string.h>

// made are the contexts that the program has made; the driver knows those it makes for each device (primary).
static CUcontext *made;
static size_t count, most;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult add(CUresult r, CUcontext *context)
{
	if (r != CUDA_SUCCESS || !context)
		return r;
	pthread_mutex_lock(&lock);
	if (count == most) {
		CUcontext *more = room(2 * (most + 64) * sizeof(*more));

		if (more) {
			if (made)
				memcpy(more, made, count * sizeof(*made));
			if (made)
				room_free(made, most * sizeof(*made));
			made = more;
			most = 2 * (most + 64);
		}
	}
	if (count < most)
		made[count++] = *context;
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult hook_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	return add(driver.cuCtxCreate_v2(context, flags, device), context);
}

CUresult hook_cuCtxCreate_v3(CUcontext *context, void *affinity, int n, unsigned flags, CUdevice device)
{
	return add(driver.cuCtxCreate_v3(context, affinity, n, flags, device), context);
}

CUresult hook_cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
	return add(driver.cuCtxCreate_v4(context, parameters, flags, device), context);
}

// other is a version of cuCtxCreate without a name; all have the context first, and five arguments at most.
static CUresult (*other)(CUcontext *, uint64_t, uint64_t, uint64_t, uint64_t);

static CUresult create_other(CUcontext *context, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	return add(other(context, a, b, c, d), context);
}

void *hook_create(void *real)
{
	if (other && (void *)other != real)
		unable("the program makes contexts in several ways that the library does not know");
	else
		other = (CUresult (*)(CUcontext *, uint64_t, uint64_t, uint64_t, uint64_t))real;
	return (void *)other == real ? (void *)create_other : real;
}

CUresult hook_cuCtxFromGreenCtx(CUcontext *context, void *green)
{
	return add(driver.cuCtxFromGreenCtx(context, green), context);
}

// free_of frees what a context had, which has just ended.
static void free_of(CUcontext context)
{
	struct range r;

	capture_context_ended(context);
	peers_context_ended(context);
	while (table_take_of(context, &r))
		range_free(&r);
	borrow_context_ended(context);
	managed_context_ended(context);
}

CUresult hook_cuCtxDestroy_v2(CUcontext context)
{
	CUresult r;

	managed_context_ends(context);
	r = driver.cuCtxDestroy_v2(context);
	if (r != CUDA_SUCCESS)
		return r;
	free_of(context);
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count; i++)
		if (made[i] == context) {
			made[i] = made[--count];
			break;
		}
	pthread_mutex_unlock(&lock);
	return r;
}

// primary gives a device's primary context where it has one, and leaves it as it is.
static CUcontext primary(CUdevice device)
{
	CUcontext context = NULL;
	unsigned flags;
	int active = 0;

	if (driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
	    driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return NULL;
	driver.cuDevicePrimaryCtxRelease_v2(device);
	return context;
}

// ending returns a device's primary context, which may be about to end; NULL: there is none.
static CUcontext ending(CUdevice device)
{
	CUcontext context = primary(device);

	if (context)
		managed_context_ends(context);
	return context;
}

// ended frees what a device's primary context had, if it is not there any more.
static CUresult ended(CUresult r, CUdevice device, CUcontext before)
{
	unsigned flags;
	int active = 1;

	if (r == CUDA_SUCCESS && before && driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active)
		free_of(before);
	return r;
}

CUresult hook_cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUcontext before = ending(device);

	return ended(driver.cuDevicePrimaryCtxRelease(device), device, before);
}

CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUcontext before = ending(device);

	return ended(driver.cuDevicePrimaryCtxRelease_v2(device), device, before);
}

CUresult hook_cuDevicePrimaryCtxReset(CUdevice device)
{
	CUcontext before = ending(device);

	return ended(driver.cuDevicePrimaryCtxReset(device), device, before);
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUcontext before = ending(device);

	return ended(driver.cuDevicePrimaryCtxReset_v2(device), device, before);
}

static CUresult with(CUcontext context, CUresult (*f)(CUcontext context))
{
	CUresult r = driver.cuCtxSetCurrent(context);

	return r == CUDA_SUCCESS ? f(context) : r;
}

CUresult contexts_each(CUresult (*f)(CUcontext context))
{
	CUresult r;
	int n = 0;

	r = driver.cuDeviceGetCount(&n);
	for (CUdevice d = 0; d < n && r == CUDA_SUCCESS; d++) {
		CUcontext context = primary(d);

		if (context)
			r = with(context, f);
	}
	for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = with(made[i], f);
	driver.cuCtxSetCurrent(NULL);
	return r;
}

// synchronize is called behind the closed gate, where nothing is captured, or later, where whom it is for has given up.
static CUresult synchronize(CUcontext context)
{
	CUresult r;

	(void)context;
	if (!capture_wait_begin())
		return CUDA_ERROR_NOT_READY;
	r = driver.cuCtxSynchronize();
	capture_wait_end();
	return r;
}

CUresult contexts_synchronize(void) { return contexts_each(synchronize); }

CUresult hook_cuInit(unsigned flags)
{
	CUresult r = driver.cuInit(flags);

	if (r == CUDA_SUCCESS) {
		range_begin();
		thread_start();
	}
	return r;
}

CUcontext context_on(CUdevice device)
{
	CUcontext found = primary(device);
	CUdevice on;

	for (size_t i = 0; !found && i < count; i++) {
		if (driver.cuCtxPushCurrent_v2(made[i]) != CUDA_SUCCESS)
			continue;
		if (driver.cuCtxGetDevice(&on) == CUDA_SUCCESS && on == device)
			found = made[i];
		driver.cuCtxPopCurrent_v2(&(CUcontext){NULL});
	}
	return found;
}

// RELAXED is CU_STREAM_CAPTURE_MODE_RELAXED: what this thread does has nothing to do with captures.
#define RELAXED 2

CUresult context_enter(struct entered *e, CUcontext context)
{
	CUresult r = driver.cuCtxPushCurrent_v2(context);

	*e = (struct entered){context, RELAXED};
	if (r == CUDA_SUCCESS)
		driver.cuThreadExchangeStreamCaptureMode(&e->mode);
	return r;
}

void context_leave(struct entered *e)
{
	driver.cuThreadExchangeStreamCaptureMode(&e->mode);
	driver.cuCtxPopCurrent_v2(&e->context);
}

void contexts_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	count = 0;
}
