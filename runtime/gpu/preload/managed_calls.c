// The calls about managed memory.
#define _GNU_SOURCE
#include "hooks.h"
#include "managed.h"
#include "memory.h"
#include "range.h"
#include "thread.h"

#include <string.h>

CUresult hook_cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	if (!thread_runs())
		return driver.cuMemAllocManaged(pointer, bytes, flags);
	if (!pointer || !bytes || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	// What the library cannot make is the driver's, which the driver cannot save.
	return managed_alloc(pointer, bytes, NULL) == CUDA_SUCCESS ? CUDA_SUCCESS : driver.cuMemAllocManaged(pointer, bytes, flags);
}

// Copies between the host and a device, where what is the host's may be managed memory: that goes to the device first, as with the driver, and is copied there.
#define AT(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
#define COPY(name, host, within, arguments, call, call_within) \
	CUresult hook_##name arguments \
	{ \
		CUresult r = CUDA_SUCCESS; \
		int inside = 0; \
 \
		if (managed_near(AT(to), bytes) || managed_near(AT(from), bytes)) \
			r = managed_use(AT(to), AT(from), bytes, AT(host), &inside); \
		if (r != CUDA_SUCCESS) \
			return r; \
		return inside ? driver.within call_within : driver.name call; \
	}
COPY(cuMemcpyHtoD_v2, from, cuMemcpyDtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes), (to, AT(from), bytes))
COPY(cuMemcpyHtoD_v2_ptds, from, cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes), (to, from, bytes), (to, AT(from), bytes))
COPY(cuMemcpyHtoDAsync_v2, from, cuMemcpyDtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream), (to, AT(from), bytes, stream))
COPY(cuMemcpyHtoDAsync_v2_ptsz, from, cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream), (to, from, bytes, stream), (to, AT(from), bytes, stream))
COPY(cuMemcpyDtoH_v2, to, cuMemcpyDtoD_v2, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), (AT(to), from, bytes))
COPY(cuMemcpyDtoH_v2_ptds, to, cuMemcpyDtoD_v2_ptds, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes), (AT(to), from, bytes))
COPY(cuMemcpyDtoHAsync_v2, to, cuMemcpyDtoDAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream), (AT(to), from, bytes, stream))
COPY(cuMemcpyDtoHAsync_v2_ptsz, to, cuMemcpyDtoDAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream), (to, from, bytes, stream), (AT(to), from, bytes, stream))

// LAST is the bit of a chunk's accessed that is the CPU's.
#define LAST 63

int managed_place(CUmemLocation l)
{
	switch (l.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE: return l.id >= 0 && l.id < MAX_DEVICES && range_devices() >> l.id & 1 ? l.id : NOWHERE_ADVISED;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: return CPU;
	}
	return NOWHERE_ADVISED;
}

static CUmemLocation location(CUdevice device)
{
	return device == CPU ? (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0} : (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
}

// inside returns whether a range is in one allocation.
static int inside(CUdeviceptr pointer, size_t bytes)
{
	struct allocation a;

	return bytes && managed_find(pointer, &a) && bytes <= a.bytes - (pointer - a.address);
}

// within finds the chunks of a range of an allocation; false where it is not in one. It leaves the lock with the caller.
static int within(CUdeviceptr pointer, size_t bytes, struct span **s, size_t *from, size_t *to)
{
	if (!inside(pointer, bytes))
		return 0;
	managed_lock();
	*s = managed_span(pointer);
	if (!*s) {
		managed_unlock();
		return 0;
	}
	*from = (pointer - (*s)->address) / CHUNK_BYTES;
	*to = (pointer + bytes - 1 - (*s)->address) / CHUNK_BYTES + 1;
	return 1;
}

static void note(struct chunk *c, int advice, int where)
{
	uint64_t bit = UINT64_C(1) << (where == CPU ? LAST : where);

	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY: c->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY; break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: c->preferred = where; break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: c->preferred = NOWHERE_ADVISED; break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY: c->accessed |= bit; break;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY: c->accessed &= ~bit; break;
	}
}

// The library keeps advice, and answers with it. It heeds the preferred location when it makes a unit's memory (unit_of), and no other advice: any kernel may touch any chunk.
// nowhere is the error for a place that there is not.
static CUresult advise(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation l, CUresult nowhere)
{
	int needs = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
	size_t from, to;
	struct span *s;

	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	if (needs && managed_place(l) == NOWHERE_ADVISED)
		return nowhere;
	if (!within(pointer, bytes, &s, &from, &to))
		return CUDA_ERROR_INVALID_VALUE;
	if (s->pool) { // as with the driver
		managed_unlock();
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	for (; from < to; from++)
		note(&s->chunks[from], advice, needs ? managed_place(l) : 0);
	managed_unlock();
	return CUDA_SUCCESS;
}

CUresult hook_cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation l)
{
	return managed_near(pointer, bytes) ? advise(pointer, bytes, advice, l, CUDA_ERROR_INVALID_VALUE) : driver.cuMemAdvise_v2(pointer, bytes, advice, l);
}

CUresult hook_cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)
{
	return managed_near(pointer, bytes) ? advise(pointer, bytes, advice, location(device), CUDA_ERROR_INVALID_DEVICE) : driver.cuMemAdvise(pointer, bytes, advice, device);
}

// prefetch moves a range to the device at once. Two moves need devices that are at rest: to the host, and from PINNED memory to the device. If a stream is at work, prefetch leaves these chunks where they are: the work may wait for the caller.
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, CUmemLocation l, CUstream stream, CUresult (*query)(CUstream))
{
	int where = managed_place(l), idle;
	CUresult r = CUDA_SUCCESS;
	size_t from, to;
	struct span *s;

	if (where == NOWHERE_ADVISED)
		return CUDA_ERROR_INVALID_DEVICE;
	idle = query(stream) == CUDA_SUCCESS;
	if (!within(pointer, bytes, &s, &from, &to))
		return CUDA_ERROR_INVALID_VALUE;
	if (idle)
		r = where == CPU ? managed_idle(0) : managed_promote(s, from, to);
	if (r == CUDA_ERROR_NOT_READY) { // a stream is being captured
		idle = 0;
		r = CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS && where != CPU)
		r = managed_to_device(s, from, to, 0);
	if (r == CUDA_SUCCESS && where == CPU && idle)
		r = managed_fetch(s, from, to);
	for (; r == CUDA_SUCCESS && from < to; from++) {
		if (where == CPU && idle)
			r = managed_to_host(s, from, 0);
		s->chunks[from].prefetched = where;
	}
	managed_unlock();
	return r;
}

#define PREFETCH(name, query, flags, location, arguments, call) \
	CUresult hook_##name arguments \
	{ \
		if (!managed_near(pointer, bytes)) \
			return driver.name call; \
		return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(pointer, bytes, location, stream, driver.query); \
	}
PREFETCH(cuMemPrefetchAsync, cuStreamQuery, 0, location(device), (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream), (pointer, bytes, device, stream))
PREFETCH(cuMemPrefetchAsync_ptsz, cuStreamQuery_ptsz, 0, location(device), (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream), (pointer, bytes, device, stream))
PREFETCH(cuMemPrefetchAsync_v2, cuStreamQuery, flags, l, (CUdeviceptr pointer, size_t bytes, CUmemLocation l, unsigned flags, CUstream stream), (pointer, bytes, l, flags, stream))
PREFETCH(cuMemPrefetchAsync_v2_ptsz, cuStreamQuery_ptsz, flags, l, (CUdeviceptr pointer, size_t bytes, CUmemLocation l, unsigned flags, CUstream stream), (pointer, bytes, l, flags, stream))

static int near_any(const CUdeviceptr *pointers, const size_t *bytes, size_t count)
{
	for (size_t i = 0; pointers && bytes && i < count; i++)
		if (managed_near(pointers[i], bytes[i]))
			return 1;
	return 0;
}

// prefetch_all prefetches ranges, or, without locations, only checks that they are managed. Place i is for the ranges from first[i] on.
static CUresult prefetch_all(const CUdeviceptr *pointers, const size_t *bytes, size_t count, const CUmemLocation *locations, const size_t *first, size_t places, CUstream stream, CUresult (*query)(CUstream))
{
	CUresult r = locations && (!places || !first) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;

	for (size_t i = 0, place = 0; r == CUDA_SUCCESS && i < count; i++) {
		while (place + 1 < places && first[place + 1] <= i)
			place++;
		if (!inside(pointers[i], bytes[i]))
			r = CUDA_ERROR_INVALID_VALUE;
		else if (locations)
			r = prefetch(pointers[i], bytes[i], locations[place], stream, query);
	}
	return r;
}

// What is discarded keeps its bytes, which is as good as any.
#define BATCH(name, query, locations, first, places, arguments, call) \
	CUresult hook_##name arguments \
	{ \
		if (!near_any(pointers, bytes, count)) \
			return driver.name call; \
		return flags ? CUDA_ERROR_INVALID_VALUE : prefetch_all(pointers, bytes, count, locations, first, places, stream, driver.query); \
	}
#define PREFETCHES(name, query) \
	BATCH(name, query, locations, first, places, (CUdeviceptr *pointers, size_t *bytes, size_t count, CUmemLocation *locations, size_t *first, size_t places, unsigned long long flags, CUstream stream), \
		(pointers, bytes, count, locations, first, places, flags, stream))
#define DISCARDS(name, query) BATCH(name, query, NULL, NULL, 0, (CUdeviceptr *pointers, size_t *bytes, size_t count, unsigned long long flags, CUstream stream), (pointers, bytes, count, flags, stream))
PREFETCHES(cuMemPrefetchBatchAsync, cuStreamQuery)
PREFETCHES(cuMemPrefetchBatchAsync_ptsz, cuStreamQuery_ptsz)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync, cuStreamQuery)
PREFETCHES(cuMemDiscardAndPrefetchBatchAsync_ptsz, cuStreamQuery_ptsz)
DISCARDS(cuMemDiscardBatchAsync, cuStreamQuery)
DISCARDS(cuMemDiscardBatchAsync_ptsz, cuStreamQuery_ptsz)

// attach has no effect: devices that access managed memory at the same time as the host access what is attached to the host, or to one stream, too.
static CUresult attach(CUdeviceptr pointer, size_t bytes, unsigned flags)
{
	struct allocation a;

	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
		return CUDA_ERROR_INVALID_VALUE;
	return managed_find(pointer, &a) && !a.span->pool && a.address == pointer && (!bytes || bytes == a.bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult hook_cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)
{
	return managed_near(pointer, 1) ? attach(pointer, bytes, flags) : driver.cuStreamAttachMemAsync(stream, pointer, bytes, flags);
}

CUresult hook_cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)
{
	return managed_near(pointer, 1) ? attach(pointer, bytes, flags) : driver.cuStreamAttachMemAsync_ptsz(stream, pointer, bytes, flags);
}

// type_of returns a location as a CUmemLocationType: 0 is CU_MEM_LOCATION_TYPE_INVALID.
static int type_of(int where) { return where == NOWHERE_ADVISED ? 0 : location(where).type; }

// answer answers with what all chunks have in common.
static CUresult answer(int *data, size_t size, int attribute, const struct chunk *chunks, size_t count)
{
	int read_mostly = 1, preferred = chunks->preferred, prefetched = chunks->prefetched;
	uint64_t accessed = ~UINT64_C(0);
	size_t n = 0;

	for (size_t i = 0; i < count; i++) {
		read_mostly &= chunks[i].read_mostly;
		accessed &= chunks[i].accessed;
		if (chunks[i].preferred != preferred)
			preferred = NOWHERE_ADVISED;
		if (chunks[i].prefetched != prefetched)
			prefetched = NOWHERE_ADVISED;
	}
	if (!data || size < sizeof(int) || size % sizeof(int) || (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size != sizeof(int)))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: *data = read_mostly; break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: *data = preferred; break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: *data = type_of(preferred); break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: *data = prefetched; break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: *data = type_of(prefetched); break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		for (int bit = 0; bit <= LAST && n < size / sizeof(int); bit++)
			if (accessed >> bit & 1)
				data[n++] = bit == LAST ? CPU : bit;
		while (n < size / sizeof(int))
			data[n++] = NOWHERE_ADVISED;
		break;
	default: return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

CUresult hook_cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr pointer, size_t bytes)
{
	size_t from, to;
	struct span *s;
	CUresult r;

	if (!managed_near(pointer, bytes))
		return driver.cuMemRangeGetAttribute(data, size, attribute, pointer, bytes);
	if (!within(pointer, bytes, &s, &from, &to))
		return CUDA_ERROR_INVALID_VALUE;
	r = answer(data, size, attribute, &s->chunks[from], to - from);
	managed_unlock();
	return r;
}

CUresult hook_cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr pointer, size_t bytes)
{
	CUresult r = CUDA_SUCCESS;

	if (!managed_near(pointer, bytes))
		return driver.cuMemRangeGetAttributes(data, sizes, attributes, count, pointer, bytes);
	for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
		r = hook_cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], pointer, bytes);
	return r;
}
