// The calls by which programs make and map memory with handles.
#define _GNU_SOURCE
#include "able.h"
#include "hooks.h"
#include "host.h"
#include "memory.h"
#include "shared.h"
#include "virtual.h"

#include <fcntl.h>

// MOST_WHOLE is how much memory is one piece where others may be given a descriptor of it, 1 GiB but for tests: what comes back onto a GPU with another number takes the room of one
// piece more.
#define MOST_WHOLE range_piece(SIZE_MAX)

// goes is true for memory that can go to another process and come back as other memory.
static int goes(size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	int devices = 0;

	if (flags || bytes % GRANULARITY || !memory_ours(bytes) || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    prop->location.id < 0 || prop->location.id >= MAX_DEVICES || prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    prop->allocFlags.compressionType || prop->allocFlags.usage)
		return 0;
	// Memory in several pieces has no one descriptor, for which programs ask where several GPUs work together.
	if (prop->requestedHandleTypes && bytes > MOST_WHOLE)
		return driver.cuDeviceGetCount(&devices) == CUDA_SUCCESS && devices == 1;
	return 1;
}

// make makes memory; NULL: the driver is to do it, so that errors are its own.
static struct memory *make(size_t bytes, const CUmemAllocationProp *prop)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	virtual_lock();
	m = virtual_new(prop, bytes, prop->requestedHandleTypes ? MOST_WHOLE : range_piece(bytes));
	virtual_unlock();
	for (unsigned i = 0; m && r == CUDA_SUCCESS && i < m->range.count; i++) {
		struct piece *p = &m->range.pieces[i];

		r = range_create(&m->range, p->bytes, &p->handle);
		p->own = r == CUDA_SUCCESS;
		if (r != CUDA_SUCCESS)
			p->handle = 0;
	}
	if (r == CUDA_SUCCESS)
		return m;
	virtual_lock();
	virtual_end(m);
	virtual_unlock();
	return NULL;
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct memory *m = NULL;

	if (handle && prop && goes(bytes, prop, flags))
		m = make(bytes, prop);
	else if (handle && prop && !flags && host_goes(bytes, prop))
		m = host_make(bytes, prop);

	if (!m)
		return driver.cuMemCreate(handle, bytes, prop, flags);
	*handle = virtual_handle(m);
	return CUDA_SUCCESS;
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *m;
	CUresult r;

	virtual_lock();
	m = virtual_of(handle);
	if (m && m->handles) {
		m->handles--;
		r = virtual_unused(m);
	} else {
		r = driver.cuMemRelease(virtual_real(handle));
	}
	virtual_unlock();
	return r;
}

// keep leaves memory to the driver from now on, since others may have it. What is not the process's own cannot be.
static void keep(struct memory *m)
{
	if (m->imported || m->multicast || m->range.pieces[0].passed >= 0)
		unknown("it shares GPU memory with the host, too");
	if (m->imported || m->multicast)
		return;
	m->stays = 1;
	for (unsigned i = 0; i < m->range.count; i++)
		if (!m->range.pieces[i].own)
			unable("it shares GPU memory that it got back from a checkpoint, and that there was no room to make its own");
}

// map_unlocked maps an import, or a multicast object: the driver waits until all devices have been added to the object, which another thread may have to do.
static CUresult map_unlocked(struct mapping *m)
{
	CUresult r;

	m->memory->mapped++;
	virtual_unlock();
	r = mapping_map(m);
	virtual_lock();
	m->memory->mapped--;
	if (r == CUDA_SUCCESS && !mapping_room()) {
		driver.cuMemUnmap(m->address, m->bytes);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r != CUDA_SUCCESS)
		virtual_unused(m->memory);
	return r;
}

CUresult hook_cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct mapping m = {.address = pointer, .bytes = bytes, .offset = offset};
	CUresult r;

	if (memory_covers(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	virtual_lock();
	m.memory = virtual_of(handle);
	if (!m.memory)
		r = driver.cuMemMap(pointer, bytes, offset, virtual_real(handle), flags);
	else if (flags || (m.memory->range.count > 1 && (offset || !bytes || bytes % GRANULARITY || bytes > m.memory->range.bytes)))
		r = CUDA_ERROR_INVALID_VALUE;
	else if (m.memory->imported || m.memory->multicast)
		r = map_unlocked(&m);
	else
		r = mapping_room() ? mapping_map(&m) : CUDA_ERROR_OUT_OF_MEMORY;
	if (m.memory && r == CUDA_SUCCESS)
		mapping_add(&m);
	virtual_unlock();
	return r;
}

// cuts is true where a range begins or ends within memory that is mapped in several pieces: the driver would take one for a whole mapping.
static int cuts(CUdeviceptr pointer, size_t bytes)
{
	for (int end = 0; end < 2; end++) {
		CUdeviceptr at = pointer + (end ? bytes : 0);
		const struct mapping *m = mapping_at(mapping_after(at));

		if (m && m->address < at && m->memory->range.count > 1)
			return 1;
	}
	return 0;
}

CUresult virtual_take_away(CUdeviceptr pointer, size_t bytes)
{
	struct mapping *m;
	CUresult r;

	virtual_lock();
	r = cuts(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemUnmap(pointer, bytes);
	if (r == CUDA_SUCCESS)
		for (size_t at = mapping_after(pointer); (m = mapping_at(at)) && m->address - pointer < bytes;) {
			struct memory *memory = m->memory;

			mapping_remove(at);
			virtual_unused(memory);
		}
	virtual_unlock();
	return r;
}

CUresult hook_cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
	return memory_covers(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : virtual_take_away(pointer, bytes);
}

// note notes the access that a mapping has got.
static void note(struct mapping *m, const CUmemAccessDesc *access, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t device = UINT64_C(1) << access[i].location.id % MAX_DEVICES;

		if (m->memory->host && access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
			m->host = access[i];
			continue;
		}
		if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || access[i].location.id >= MAX_DEVICES) {
			keep(m->memory); // the host has it
			continue;
		}
		m->read &= ~device;
		m->write &= ~device;
		if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			m->write |= device;
		else if (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			m->read |= device;
	}
}

CUresult hook_cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	struct mapping *m;
	CUresult r;

	if (memory_covers(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	virtual_lock();
	r = cuts(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemSetAccess(pointer, bytes, access, count);
	if (r == CUDA_SUCCESS)
		for (size_t at = mapping_after(pointer); (m = mapping_at(at)) && m->address - pointer < bytes; at++)
			note(m, access, count);
	virtual_unlock();
	return r;
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUdeviceptr at = (uintptr_t)address;
	struct mapping *m;

	if (memory_covers(at, 1))
		return CUDA_ERROR_INVALID_VALUE;
	virtual_lock();
	m = handle ? mapping_at(mapping_after(at)) : NULL;
	if (m && m->address > at)
		m = NULL;
	if (m) {
		m->memory->handles++;
		*handle = virtual_handle(m->memory);
	}
	virtual_unlock();
	return m ? CUDA_SUCCESS : driver.cuMemRetainAllocationHandle(handle, address);
}

// share exports memory. All who get it have the same open file.
static CUresult share(struct memory *m, int *fd, int type, unsigned long long flags)
{
	struct piece *p = &m->range.pieces[0];
	CUresult r;

	if (m->imported)
		return driver.cuMemExportToShareableHandle(fd, p->handle, type, flags);
	if (!fd || flags || !type || type & ~m->prop.requestedHandleTypes)
		return CUDA_ERROR_INVALID_VALUE;
	if (m->range.count > 1)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = shared_pass(p, fd);
	if (r == CUDA_SUCCESS && m->stays)
		unknown("it shares GPU memory that the driver keeps");
	return r;
}

CUresult hook_cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	struct memory *m;
	CUresult r;

	virtual_lock();
	m = virtual_of(handle);
	r = m ? share(m, shared, type, flags) : driver.cuMemExportToShareableHandle(shared, virtual_real(handle), type, flags);
	virtual_unlock();
	if (!m && r == CUDA_SUCCESS)
		unknown("it shares GPU memory that the driver keeps (cuMemExportToShareableHandle)");
	return r;
}

CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	CUresult r = driver.cuMemImportFromShareableHandle(handle, shared, type);
	struct memory *m = NULL;

	if (r != CUDA_SUCCESS)
		return r;
	if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && memory_ours(GRANULARITY)) {
		virtual_lock();
		m = shared_imported(*handle, (intptr_t)shared);
		virtual_unlock();
	}
	if (m)
		*handle = virtual_handle(m);
	else
		unknown("it has imported GPU memory in a way that the library does not look after (cuMemImportFromShareableHandle)");
	return r;
}

CUresult hook_cuMemPoolExportToShareableHandle(void *shared, void *pool, int type, unsigned long long flags)
{
	CUresult r = driver.cuMemPoolExportToShareableHandle(shared, pool, type, flags);

	if (r == CUDA_SUCCESS)
		unknown("it gives memory pools to other processes (cuMemPoolExportToShareableHandle)");
	return r;
}

CUresult hook_cuMemPoolImportFromShareableHandle(void **pool, void *shared, int type, unsigned long long flags)
{
	CUresult r = driver.cuMemPoolImportFromShareableHandle(pool, shared, type, flags);

	if (r == CUDA_SUCCESS)
		unknown("it uses memory pools of other processes (cuMemPoolImportFromShareableHandle)");
	return r;
}

CUresult hook_cuImportExternalMemory(void **memory, const void *description)
{
	CUresult r = driver.cuImportExternalMemory(memory, description);

	if (r == CUDA_SUCCESS)
		unknown("it uses memory of other drivers (cuImportExternalMemory)");
	return r;
}

CUresult hook_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct memory *m;
	CUresult r;

	virtual_lock();
	m = virtual_of(handle);
	r = driver.cuMemGetAllocationPropertiesFromHandle(prop, m ? m->range.pieces[0].handle : virtual_real(handle));
	if (m && r == CUDA_SUCCESS)
		prop->requestedHandleTypes = m->prop.requestedHandleTypes;
	virtual_unlock();
	return r;
}
