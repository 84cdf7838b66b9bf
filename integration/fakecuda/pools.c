// Pools, of device memory and of managed memory. As with the real driver (580.159.04), a pool has large addresses by /dev/nvidia-uvm from its beginning; memory of one cannot be saved (801); and a process that has an empty one is saved and then lost (304).
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { DEVICE = 1, MANAGED = 2, POOLS = 16, NODE_MAJOR = 511 };
#define NODE "/dev/nvidia-uvm"
#define RESERVED ((size_t)64 << 30)

static struct pool { int type; } pools[POOLS]; // type: 0: it is free

int pools_any(void)
{
	for (const struct pool *p = pools; p < pools + POOLS; p++)
		if (p->type == MANAGED)
			return 1;
	return 0;
}

// reserve maps addresses by the node. That of a lab's container cannot be mapped, and a file takes its place. On a host there is no such node, and nothing is mapped.
static void reserve(void)
{
	struct stat st;
	int fd;

	if (stat(NODE, &st) || (S_ISCHR(st.st_mode) && (major(st.st_rdev) != NODE_MAJOR || unlink(NODE))))
		return;
	fd = open(NODE, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	if (!ftruncate(fd, RESERVED) && mmap(NULL, RESERVED, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
		unlink(NODE);
	close(fd);
}

static CUresult make(CUmemoryPool *pool, int type)
{
	for (struct pool *p = pools; p < pools + POOLS; p++)
		if (!p->type) {
			p->type = type;
			*pool = p;
			if (type == MANAGED)
				reserve();
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct pool *known(CUmemoryPool pool)
{
	struct pool *p = pool;

	return p >= pools && p < pools + POOLS && p->type ? p : NULL;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!pool || !properties || (properties->allocType != DEVICE && properties->allocType != MANAGED) || (properties->allocType == MANAGED && properties->maxSize)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = make(pool, properties->allocType);
	return leave(r);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !known(pool))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		known(pool)->type = 0;
	return leave(r);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	CUresult r = enter();

	(void)stream;
	if (r == CUDA_SUCCESS && (!pointer || !known(pool) || !current))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = memory_alloc(current, current->device, bytes, known(pool)->type == MANAGED, pointer);
	return leave(r);
}

// The library answers these for its own pools. No test asks for the driver's.
#define NOT_BUILT(name, ...) CUresult name(__VA_ARGS__) { return CUDA_ERROR_NOT_SUPPORTED; }
#pragma GCC diagnostic ignored "-Wunused-parameter"
NOT_BUILT(cuMemPoolTrimTo, CUmemoryPool pool, size_t keep)
NOT_BUILT(cuMemPoolGetAttribute, CUmemoryPool pool, int attribute, void *value)
NOT_BUILT(cuMemPoolSetAttribute, CUmemoryPool pool, int attribute, void *value)
NOT_BUILT(cuMemPoolSetAccess, CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
NOT_BUILT(cuMemPoolGetAccess, int *flags, CUmemoryPool pool, CUmemLocation *location)
NOT_BUILT(cuMemGetDefaultMemPool, CUmemoryPool *pool, CUmemLocation *location, int type)
NOT_BUILT(cuMemGetMemPool, CUmemoryPool *pool, CUmemLocation *location, int type)
NOT_BUILT(cuMemSetMemPool, CUmemLocation *location, int type, CUmemoryPool pool)
NOT_BUILT(cuDeviceSetMemPool, CUdevice device, CUmemoryPool pool)
