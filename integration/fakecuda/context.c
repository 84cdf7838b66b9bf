// Contexts, and which of them a thread works with.
#define _GNU_SOURCE
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <string.h>

#define MAX_CONTEXTS 64
#define MAX_STACK 16
#define DEFAULT_STACK 1024
#define LARGE ((size_t)4 << 20)

static struct fake_context contexts[MAX_CONTEXTS]; // the first ones are the devices' primary ones
static size_t restored; // bytes of memory, by a checkpoint's way back

__thread CUcontext current;
static __thread CUcontext below[MAX_STACK]; // that were current before, the last one on top
static __thread int depth;

int contexts_have_peers(void)
{
	for (struct fake_context *c = contexts; c < contexts + MAX_CONTEXTS; c++)
		if (c->alive && c->peers)
			return 1;
	return 0;
}

void contexts_restored(void) { restored = memory_bytes() + virtual_bytes(); }

int contexts_on(int device)
{
	for (struct fake_context *c = contexts; c < contexts + MAX_CONTEXTS; c++)
		if (c->alive && c->device == device)
			return 1;
	return 0;
}

void contexts_forget(void)
{
	memset(contexts, 0, sizeof(contexts));
	streams_forget();
	current = NULL;
	depth = 0;
	restored = 0;
}

static int known(int device) { return device >= 0 && device < devices_count; }

static CUresult push(CUcontext context)
{
	if (depth == MAX_STACK)
		return CUDA_ERROR_INVALID_VALUE;
	below[depth++] = current;
	current = context;
	return CUDA_SUCCESS;
}

// begin makes a context alive.
static CUresult begin(CUcontext context)
{
	CUresult r = local_make(context, DEFAULT_STACK);

	context->alive = r == CUDA_SUCCESS;
	return r;
}

// end takes all away that a context has.
static void end(CUcontext context)
{
	memory_free_all(context);
	streams_end(context);
	context->alive = 0;
	context->retained = 0;
	context->peers = 0;
	context->local = 0;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
	CUresult r = enter();

	(void)flags;
	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	for (int i = MAX_DEVICES; r == CUDA_SUCCESS; i++) {
		if (i == MAX_CONTEXTS) {
			r = CUDA_ERROR_OUT_OF_MEMORY;
		} else if (!contexts[i].alive) {
			contexts[i] = (struct fake_context){.device = device};
			r = begin(&contexts[i]);
			*context = &contexts[i];
			if (r == CUDA_SUCCESS)
				r = push(*context);
			break;
		}
	}
	return leave(r);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
	CUresult r = enter_idle();

	if (r == CUDA_SUCCESS && (!context || !context->alive || context->primary))
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS) {
		end(context);
		if (current == context)
			current = depth ? below[--depth] : NULL;
	}
	return leave(r);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS) {
		CUcontext c = *context = &contexts[device];

		c->device = device;
		c->primary = 1;
		if (!c->alive)
			r = begin(c);
		c->retained += r == CUDA_SUCCESS;
	}
	return leave(r);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult r = enter_idle();

	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS && !contexts[device].retained)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && --contexts[device].retained == 0)
		end(&contexts[device]);
	return leave(r);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUresult r = enter_idle();

	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS)
		end(&contexts[device]);
	return leave(r);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
	CUresult r = enter();

	(void)flags;
	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	return leave(r);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !known(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS) {
		*flags = 0;
		*active = contexts[device].alive;
	}
	return leave(r);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult r = enter();

	current = context;
	return leave(r);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult r = enter();

	*context = current;
	return leave(r);
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
	CUresult r = enter();

	return leave(r == CUDA_SUCCESS ? push(context) : r);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !depth)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS) {
		if (context)
			*context = current;
		current = below[--depth];
	}
	return leave(r);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS)
		*device = current->device;
	return leave(r);
}

CUresult cuCtxSynchronize(void)
{
	CUresult r = orders_own("cuCtxSynchronize");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS)
		r = streams_whole(current);
	leave(r);
	return r == CUDA_SUCCESS ? leave(enter_idle()) : r;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	CUresult r = orders_own("cuCtxEnablePeerAccess");

	(void)flags;
	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (!current || !peer || peer == current))
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && current->peers & 1u << peer->device)
		r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	// As the real driver: it does not give access again where it has restored large memory.
	if (r == CUDA_SUCCESS && restored > LARGE)
		r = CUDA_ERROR_INVALID_HANDLE;
	if (r == CUDA_SUCCESS)
		current->peers |= 1u << peer->device;
	return leave(r);
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	CUresult r = orders_own("cuCtxDisablePeerAccess");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (!current || !peer))
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && !(current->peers & 1u << peer->device))
		r = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	if (r == CUDA_SUCCESS)
		current->peers &= ~(1u << peer->device);
	return leave(r);
}
