// Pools of managed memory (cuMemPoolCreate with CU_MEM_ALLOCATION_TYPE_MANAGED). The driver cannot save a process that has memory of such a pool, and loses one that has an empty pool. So these pools are the library's, and the driver has none.
#define _GNU_SOURCE
#include "hooks.h"
#include "managed.h"
#include "thread.h"

static struct pool *all; // managed_lock is for them

static int same(CUmemLocation a, CUmemLocation b) { return a.type == b.type && a.id == b.id; }

// find returns the pool of a handle; NULL: it is none, or was destroyed. The caller has the lock.
static struct pool *find(const void *handle)
{
	for (struct pool *p = all; p; p = p->next)
		if (p == handle && !p->gone)
			return p;
	return NULL;
}

// look is find for a caller without the lock. A program keeps its pool until the call has returned.
static struct pool *look(const void *handle)
{
	struct pool *p;

	if (!__atomic_load_n(&all, __ATOMIC_ACQUIRE))
		return NULL; // as in nearly all programs
	managed_lock();
	p = find(handle);
	managed_unlock();
	return p;
}

// sweep forgets pools that were destroyed, and have no memory any more.
static void sweep(void)
{
	for (struct pool **at = &all, *p = *at; p; p = *at) {
		if (p->gone && !managed_trim(p)) {
			*at = p->next;
			room_free(p, sizeof(*p));
		} else {
			at = &p->next;
		}
	}
}

// known returns SUCCESS if memory can be at a location. Without one (CU_MEM_LOCATION_TYPE_INVALID), it is where it is used.
static CUresult known(CUmemLocation l)
{
	if (l.type == CU_MEM_LOCATION_TYPE_DEVICE)
		return managed_place(l) == NOWHERE_ADVISED ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	return l.type >= CU_MEM_LOCATION_TYPE_INVALID && l.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

// add makes a pool; NULL: there is no room. The caller has the lock.
static struct pool *add(CUmemLocation l)
{
	struct pool *p = room(sizeof(*p));

	if (p) {
		*p = (struct pool){.next = all, .location = l, .attributes = {1, 1, 1, 0}};
		__atomic_store_n(&all, p, __ATOMIC_RELEASE);
	}
	return p;
}

// of returns the pool for a location: the current one, or the one it has by default.
static struct pool *of(CUmemLocation l, int by_default)
{
	struct pool *found = NULL;

	for (struct pool *p = all; p; p = p->next) {
		if (p->gone || !same(p->location, l))
			continue;
		if (p->current && !by_default)
			return p;
		if (p->by_default)
			found = p;
	}
	if (!found)
		found = add(l);
	if (found)
		found->by_default = 1;
	return found;
}

CUresult managed_pool_alloc(CUdeviceptr *pointer, size_t bytes, void *handle, CUstream stream, CUresult (*capturing)(CUstream, int *))
{
	struct pool *p = look(handle);
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r;

	if (!p)
		return CUDA_ERROR_NOT_FOUND;
	if (!pointer)
		return CUDA_ERROR_INVALID_VALUE;
	*pointer = 0;
	r = capturing(stream, &status);
	if (r == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
		r = CUDA_ERROR_NOT_SUPPORTED; // a graph that makes managed memory when it runs
	if (r != CUDA_SUCCESS || !bytes)
		return r;
	r = managed_alloc(pointer, bytes, p);
	managed_lock();
	if (r == CUDA_SUCCESS && find(p) && managed_pool_used(p) > p->most)
		p->most = managed_pool_used(p);
	managed_unlock();
	return r;
}

CUresult managed_pool_free(CUdeviceptr pointer, CUstream stream, CUresult (*wait)(CUstream))
{
	struct allocation a;
	CUresult waited, freed = CUDA_ERROR_INVALID_VALUE;

	if (!managed_find(pointer, &a) || a.address != pointer)
		return CUDA_ERROR_INVALID_VALUE;
	if (!a.span->pool)
		return CUDA_ERROR_NOT_SUPPORTED;
	waited = wait(stream);
	if (waited == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || waited == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
		return waited;
	managed_free(pointer, &freed);
	managed_lock();
	sweep();
	managed_unlock();
	return waited == CUDA_SUCCESS ? freed : waited;
}

CUresult hook_cuMemPoolCreate(void **handle, const CUmemPoolProps *properties)
{
	CUresult r;

	if (!handle || !properties || properties->allocType != CU_MEM_ALLOCATION_TYPE_MANAGED || !thread_runs())
		return driver.cuMemPoolCreate(handle, properties);
	r = properties->handleTypes || properties->maxSize ? CUDA_ERROR_INVALID_VALUE : known(properties->location);
	if (r != CUDA_SUCCESS)
		return r;
	managed_lock();
	sweep();
	*handle = add(properties->location);
	managed_unlock();
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuMemPoolDestroy(void *handle)
{
	struct pool *p;
	int destroyed;

	managed_lock();
	p = find(handle);
	destroyed = p && !p->by_default;
	if (destroyed) {
		p->gone = 1;
		sweep();
	}
	managed_unlock();
	if (!p)
		return driver.cuMemPoolDestroy(handle);
	return destroyed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult hook_cuMemPoolTrimTo(void *handle, size_t keep)
{
	struct pool *p;

	managed_lock();
	p = find(handle);
	if (p && managed_pool_used(p) >= keep)
		managed_trim(p);
	managed_unlock();
	return p ? CUDA_SUCCESS : driver.cuMemPoolTrimTo(handle, keep);
}

CUresult hook_cuMemPoolGetAttribute(void *handle, int attribute, void *value)
{
	CUresult r = value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	struct pool *p = look(handle);
	uint64_t *large = value;
	size_t used;

	if (!p)
		return driver.cuMemPoolGetAttribute(handle, attribute, value);
	if (r != CUDA_SUCCESS)
		return r;
	managed_lock();
	used = managed_pool_used(p);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = (int)p->attributes[attribute - 1]; break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *large = p->attributes[attribute - 1]; break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *large = managed_reserved(used); break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *large = managed_reserved(p->most); break;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *large = used; break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *large = p->most; break;
	default: r = CUDA_ERROR_INVALID_VALUE;
	}
	managed_unlock();
	return r;
}

// A program can set the two marks of the most memory in use (…_HIGH) only to 0, which sets them to the present use. The library stores the other attributes and does nothing by them, since it keeps no free memory.
CUresult hook_cuMemPoolSetAttribute(void *handle, int attribute, void *value)
{
	CUresult r = value ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	struct pool *p = look(handle);

	if (!p)
		return driver.cuMemPoolSetAttribute(handle, attribute, value);
	if (r != CUDA_SUCCESS)
		return r;
	managed_lock();
	switch (attribute) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: p->attributes[attribute - 1] = (uint64_t)*(int *)value; break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->attributes[attribute - 1] = *(uint64_t *)value; break;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		if (*(uint64_t *)value)
			r = CUDA_ERROR_INVALID_VALUE;
		else
			p->most = managed_pool_used(p);
		break;
	default: r = CUDA_ERROR_INVALID_VALUE;
	}
	managed_unlock();
	return r;
}

// Access is kept, and has no effect: all devices reach managed memory. LAST_ACCESS is the bit of the host.
#define LAST_ACCESS 63

static CUresult bit(CUmemLocation l, uint64_t *of)
{
	int where = managed_place(l);

	if (where == NOWHERE_ADVISED)
		return CUDA_ERROR_INVALID_DEVICE;
	*of = UINT64_C(1) << (where == CPU ? LAST_ACCESS : where);
	return CUDA_SUCCESS;
}

CUresult hook_cuMemPoolSetAccess(void *handle, const CUmemAccessDesc *access, size_t count)
{
	struct pool *p = look(handle);
	CUresult r = CUDA_SUCCESS;
	uint64_t of;

	if (!p)
		return driver.cuMemPoolSetAccess(handle, access, count);
	for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++) {
		if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			return CUDA_ERROR_NOT_SUPPORTED;
		r = bit(access[i].location, &of);
		managed_lock();
		if (r == CUDA_SUCCESS)
			p->access = access[i].flags ? p->access | of : p->access & ~of;
		managed_unlock();
	}
	return r;
}

CUresult hook_cuMemPoolGetAccess(int *flags, void *handle, CUmemLocation *l)
{
	struct pool *p = look(handle);
	uint64_t of;

	if (!p)
		return driver.cuMemPoolGetAccess(flags, handle, l);
	if (!flags || !l || bit(*l, &of) != CUDA_SUCCESS)
		return CUDA_ERROR_INVALID_VALUE;
	*flags = p->access & of ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return CUDA_SUCCESS;
}

static CUresult get(void **handle, const CUmemLocation *l, int by_default)
{
	CUresult r = handle && l ? known(*l) : CUDA_ERROR_INVALID_VALUE;

	if (r == CUDA_SUCCESS && l->type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (r != CUDA_SUCCESS)
		return r;
	managed_lock();
	*handle = of(*l, by_default);
	managed_unlock();
	return *handle ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hook_cuMemGetDefaultMemPool(void **handle, CUmemLocation *l, int type)
{
	return type == CU_MEM_ALLOCATION_TYPE_MANAGED && thread_runs() ? get(handle, l, 1) : driver.cuMemGetDefaultMemPool(handle, l, type);
}

CUresult hook_cuMemGetMemPool(void **handle, CUmemLocation *l, int type)
{
	return type == CU_MEM_ALLOCATION_TYPE_MANAGED && thread_runs() ? get(handle, l, 0) : driver.cuMemGetMemPool(handle, l, type);
}

// set makes a pool the current one of its location.
static CUresult set(struct pool *p)
{
	managed_lock();
	for (struct pool *other = all; other; other = other->next)
		if (same(other->location, p->location))
			other->current = other == p;
	managed_unlock();
	return CUDA_SUCCESS;
}

CUresult hook_cuMemSetMemPool(CUmemLocation *l, int type, void *handle)
{
	struct pool *p = look(handle);

	if (!p)
		return driver.cuMemSetMemPool(l, type, handle);
	return l && type == CU_MEM_ALLOCATION_TYPE_MANAGED && same(*l, p->location) ? set(p) : CUDA_ERROR_INVALID_VALUE;
}

// What cuDeviceGetMemPool and cuMemAllocAsync take stays as it is: that pool is never one of managed memory.
CUresult hook_cuDeviceSetMemPool(CUdevice device, void *handle)
{
	struct pool *p = look(handle);

	if (!p)
		return driver.cuDeviceSetMemPool(device, handle);
	return same(p->location, (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device}) ? set(p) : CUDA_ERROR_INVALID_VALUE;
}
