#define _GNU_SOURCE
#include "host.h"
#include "memory.h"
#include "shared.h"

#include <string.h>

int host_is(const CUmemLocation *location) { return location->type >= CU_MEM_LOCATION_TYPE_HOST && location->type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT; }

int host_goes(size_t bytes, const CUmemAllocationProp *prop)
{
	return host_is(&prop->location) && bytes && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && !(prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) && memory_ours(GRANULARITY);
}

struct memory *host_make(size_t bytes, const CUmemAllocationProp *prop)
{
	CUmemGenericAllocationHandle handle;
	struct memory *m;

	if (driver.cuMemCreate(&handle, bytes, prop, 0) != CUDA_SUCCESS)
		return NULL;
	virtual_lock();
	m = virtual_new(prop, bytes, bytes);
	if (m) {
		m->host = 1;
		m->range.pieces[0].handle = handle;
		m->range.pieces[0].own = 1;
	}
	virtual_unlock();
	if (!m)
		driver.cuMemRelease(handle);
	return m;
}

// made is true for what the process has made of it.
static int made(const struct memory *m) { return m->range.count && m->host && !m->imported; }

unsigned host_count(void)
{
	const struct memory *m;
	unsigned n = 0;

	virtual_lock();
	for (size_t i = 0; (m = virtual_at(i)); i++)
		n += made(m);
	virtual_unlock();
	return n;
}

// copy copies between a memory and what was saved of it, by a mapping of its own.
static CUresult copy(struct memory *m, int save)
{
	CUmemAccessDesc access = {m->prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	size_t bytes = m->range.bytes;
	CUdeviceptr at = 0;
	CUresult r = driver.cuMemAddressReserve(&at, bytes, 0, 0, 0);

	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuMemMap(at, bytes, 0, m->range.pieces[0].handle, 0);
	if (r == CUDA_SUCCESS) {
		r = driver.cuMemSetAccess(at, bytes, &access, 1);
		if (r == CUDA_SUCCESS)
			memcpy(save ? m->saved : (void *)at, save ? (void *)at : m->saved, bytes);
		driver.cuMemUnmap(at, bytes);
	}
	driver.cuMemAddressFree(at, bytes);
	return r;
}

static void forget(struct memory *m)
{
	if (m->saved)
		room_free(m->saved, m->range.bytes);
	m->saved = NULL;
}

// take_away has one saved and gone. After an error it is there, or host_give_back brings it back.
static CUresult take_away(struct memory *m)
{
	CUresult r;

	m->saved = room(m->range.bytes);
	if (!m->saved)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = copy(m, 1);
	if (r == CUDA_SUCCESS)
		r = mappings_away(m);
	if (r == CUDA_SUCCESS)
		r = driver.cuMemRelease(m->range.pieces[0].handle);
	if (r == CUDA_SUCCESS)
		m->range.pieces[0].handle = 0;
	return r;
}

static CUresult give_back(struct memory *m)
{
	CUresult r = CUDA_SUCCESS;
	struct piece *p = &m->range.pieces[0];

	if (!p->handle) {
		r = driver.cuMemCreate(&p->handle, m->range.bytes, &m->prop, 0);
		if (r != CUDA_SUCCESS) {
			p->handle = 0;
			return r;
		}
		r = copy(m, 0);
		if (r != CUDA_SUCCESS) {
			driver.cuMemRelease(p->handle);
			p->handle = 0;
			return r;
		}
	}
	r = mappings_back(m);
	if (r == CUDA_SUCCESS)
		forget(m);
	return r;
}

CUresult host_give_back(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = virtual_at(i)); i++)
		if (made(m) && m->saved)
			r = give_back(m);
	return r;
}

CUresult host_take_away(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = virtual_at(i)); i++)
		if (made(m) && !m->saved)
			r = take_away(m);
	if (r != CUDA_SUCCESS)
		host_give_back();
	return r;
}
