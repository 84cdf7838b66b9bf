#define _GNU_SOURCE
#include "peers.h"
#include "hooks.h"
#include "managed.h"
#include "range.h"

#include <pthread.h>
#include <string.h>

// A pair has access, or had it and gets it back.
static struct pair { CUcontext own, peer; unsigned flags; int away; } *pairs;
static size_t count, most;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int pools; // the driver has memory of pools, which may be large

// devices gives the device of the current context and that of another one.
static int devices(CUcontext peer, CUdevice *own, CUdevice *other)
{
	CUresult r = driver.cuCtxGetDevice(own);

	if (r != CUDA_SUCCESS || driver.cuCtxPushCurrent_v2(peer) != CUDA_SUCCESS)
		return 0;
	r = driver.cuCtxGetDevice(other);
	driver.cuCtxPopCurrent_v2(&peer);
	return r == CUDA_SUCCESS;
}

// add is false where there is no room for a pair.
static int add(CUcontext own, CUcontext peer, unsigned flags)
{
	int ok = 1;

	pthread_mutex_lock(&lock);
	if (count == most) {
		size_t more = most ? 2 * most : 64;
		struct pair *p = room(more * sizeof(*p));

		ok = p != NULL;
		if (ok && pairs) {
			memcpy(p, pairs, count * sizeof(*p));
			room_free(pairs, most * sizeof(*p));
		}
		if (ok) {
			pairs = p;
			most = more;
		}
	}
	if (ok)
		pairs[count++] = (struct pair){own, peer, flags, 0};
	pthread_mutex_unlock(&lock);
	return ok;
}

static void forget(CUcontext own, CUcontext peer)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count; i++)
		if (pairs[i].own == own && pairs[i].peer == peer)
			pairs[i--] = pairs[--count];
	pthread_mutex_unlock(&lock);
}

// Access is between contexts for the driver's memory, and between devices for memory with handles.
CUresult hook_cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
	CUresult r = driver.cuCtxEnablePeerAccess(peer, flags);
	CUcontext context;
	CUdevice own, other;

	if (r != CUDA_SUCCESS || !devices(peer, &own, &other) || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return r;
	r = add(context, peer, flags) ? range_access(other, own, 1) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS) {
		range_access(other, own, 0);
		driver.cuCtxDisablePeerAccess(peer);
		forget(context, peer);
	}
	return r;
}

CUresult hook_cuCtxDisablePeerAccess(CUcontext peer)
{
	CUresult r = driver.cuCtxDisablePeerAccess(peer);
	CUcontext context;
	CUdevice own, other;

	if (r == CUDA_SUCCESS && devices(peer, &own, &other)) {
		range_access(other, own, 0);
		if (driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS)
			forget(context, peer);
	}
	return r;
}

#define POOLS(name, arguments, call) CUresult hook_##name arguments { __atomic_store_n(&pools, 1, __ATOMIC_RELAXED); return driver.name call; }
POOLS(cuMemAllocAsync, (CUdeviceptr *pointer, size_t bytes, CUstream stream), (pointer, bytes, stream))
POOLS(cuMemAllocAsync_ptsz, (CUdeviceptr *pointer, size_t bytes, CUstream stream), (pointer, bytes, stream))

// Memory of pools is the driver's, but for managed memory.
#define FROM_POOL(name, capturing) \
	CUresult hook_##name(CUdeviceptr *pointer, size_t bytes, void *pool, CUstream stream) \
	{ \
		CUresult r = managed_pool_alloc(pointer, bytes, pool, stream, driver.capturing); \
 \
		if (r != CUDA_ERROR_NOT_FOUND) \
			return r; \
		__atomic_store_n(&pools, 1, __ATOMIC_RELAXED); \
		return driver.name(pointer, bytes, pool, stream); \
	}
FROM_POOL(cuMemAllocFromPoolAsync, cuStreamIsCapturing)
FROM_POOL(cuMemAllocFromPoolAsync_ptsz, cuStreamIsCapturing_ptsz)

unsigned peers_count(void)
{
	unsigned n;

	pthread_mutex_lock(&lock);
	n = count;
	pthread_mutex_unlock(&lock);
	return n;
}

const char *peers_reason(void)
{
	return peers_count() && __atomic_load_n(&pools, __ATOMIC_RELAXED) ? "its GPUs have access to each other's memory, and it uses memory pools (cudaMallocAsync), which the driver keeps" : NULL;
}

// each_pair does something in the context of each pair that is there, or that is away.
static CUresult each_pair(int away, CUresult (*f)(const struct pair *p))
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++) {
		if (pairs[i].away != away)
			continue;
		r = driver.cuCtxSetCurrent(pairs[i].own);
		if (r == CUDA_SUCCESS)
			r = f(&pairs[i]);
		if (r == CUDA_SUCCESS)
			pairs[i].away = !away;
	}
	driver.cuCtxSetCurrent(NULL);
	return r;
}

static CUresult take(const struct pair *p) { return driver.cuCtxDisablePeerAccess(p->peer); }

static CUresult give(const struct pair *p) { return driver.cuCtxEnablePeerAccess(p->peer, p->flags); }

CUresult peers_take_away(void) { return each_pair(0, take); }

CUresult peers_give_back(void) { return each_pair(1, give); }

void peers_context_ended(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count; i++)
		if (pairs[i].own == context || pairs[i].peer == context)
			pairs[i--] = pairs[--count];
	pthread_mutex_unlock(&lock);
}

void peers_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	count = 0;
}
