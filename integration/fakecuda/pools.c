// Pools of managed memory. As with the real driver (580.159.04), a pool has large addresses by /dev/nvidia-uvm from its beginning; memory of one cannot be saved (801); and a process that has an empty one is saved and then lost (304).
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { MANAGED = 2, POOLS = 16, NODE_MAJOR = 511 };
#define NODE "/dev/nvidia-uvm"
#define RESERVED ((size_t)64 << 30)

static struct pool { int used; size_t bytes; } pools[POOLS];

int pools_any(void)
{
	for (const struct pool *p = pools; p < pools + POOLS; p++)
		if (p->used)
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

static CUresult make(CUmemoryPool *pool)
{
	for (struct pool *p = pools; p < pools + POOLS; p++)
		if (!p->used) {
			*p = (struct pool){1, 0};
			*pool = p;
			reserve();
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = properties->allocType != MANAGED ? CUDA_ERROR_NOT_SUPPORTED : properties->maxSize ? CUDA_ERROR_INVALID_VALUE : make(pool);
	return leave(r);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult r = enter();
	struct pool *p = pool;

	if (r == CUDA_SUCCESS && (p < pools || p >= pools + POOLS || !p->used))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		p->used = 0;
	return leave(r);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
	CUresult r = enter();

	(void)stream;
	if (r == CUDA_SUCCESS && ((struct pool *)pool < pools || (struct pool *)pool >= pools + POOLS || !current))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = memory_alloc(current, current->device, bytes, 1, pointer);
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
