// The calls by which programs make and use multicast objects. Those that wait in the driver for other processes, or other threads, are made without virtual_lock.
#define _GNU_SOURCE
#include "able.h"
#include "hooks.h"
#include "memory.h"
#include "multicast.h"

#include <string.h>

// add takes an object that the program has made into the books; NULL: there is no room.
static struct memory *add(CUmemGenericAllocationHandle handle, const CUmulticastObjectProp *prop)
{
	const CUmemAllocationProp of = {.requestedHandleTypes = prop->handleTypes};
	struct memory *m = virtual_new(&of, prop->size, prop->size);

	if (m && !multicast_import(m)) {
		virtual_end(m);
		m = NULL;
	}
	if (m) {
		m->multicast->prop = *prop;
		m->range.pieces[0].handle = handle;
		m->range.pieces[0].own = 1;
	}
	return m;
}

CUresult hook_cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop)
{
	CUresult r = driver.cuMulticastCreate(handle, prop);
	struct memory *m = NULL;

	if (r != CUDA_SUCCESS)
		return r;
	if (prop->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		multicast_wild("it has multicast objects for fabric handles (cuMulticastCreate)");
		return r;
	}
	if (memory_ours(GRANULARITY)) {
		virtual_lock();
		m = add(*handle, prop);
		virtual_unlock();
	}
	if (m)
		*handle = virtual_handle(m);
	else
		multicast_wild("it has multicast objects that the library does not look after (cuMulticastCreate)");
	return r;
}

// pin keeps an object, or memory, in the books while virtual_lock is not held, and returns the driver's handle; unpin ends that. The lock is held for both.
static CUmemGenericAllocationHandle pin(struct memory *m, CUmemGenericAllocationHandle handle)
{
	if (!m)
		return virtual_real(handle);
	m->mapped++;
	return m->range.pieces[0].handle;
}

static void unpin(struct memory *m)
{
	if (!m)
		return;
	m->mapped--;
	virtual_unused(m);
}

CUresult hook_cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice device)
{
	struct memory *m;
	CUresult r;

	virtual_lock();
	m = virtual_of(object);
	object = pin(m, object);
	virtual_unlock();
	r = driver.cuMulticastAddDevice(object, device);
	virtual_lock();
	if (r == CUDA_SUCCESS && m && device < MAX_DEVICES && (m->imported ? multicast_import(m) : m->multicast != NULL)) {
		m->multicast->devices |= UINT64_C(1) << device;
		m->multicast->added |= UINT64_C(1) << device;
	} else if (r == CUDA_SUCCESS) {
		multicast_wild("it uses multicast objects that the library does not look after (cuMulticastAddDevice)");
	}
	unpin(m);
	virtual_unlock();
	return r;
}

// bound notes what was bound; false where there is no room for it.
static int bound(struct memory *object, const struct binding *b)
{
	struct multicast *m = object->multicast;

	if (m->count == m->most) {
		size_t more = m->most ? 2 * m->most : 16;
		struct binding *all = room(more * sizeof(*all));

		if (!all)
			return 0;
		if (m->bindings) {
			memcpy(all, m->bindings, m->count * sizeof(*all));
			room_free(m->bindings, m->most * sizeof(*all));
		}
		m->bindings = all;
		m->most = more;
	}
	m->bindings[m->count++] = *b;
	b->memory->mapped++;
	return 1;
}

// call makes one of the four calls by which memory is bound, with the driver's handles.
struct request { CUmemGenericAllocationHandle object, handle; CUdeviceptr pointer; struct binding binding; unsigned long long flags; };

static CUresult call(const struct request *q)
{
	const struct binding *b = &q->binding;

	if (q->pointer)
		return b->of ? driver.cuMulticastBindAddr_v2(q->object, b->device, b->at, q->pointer, b->bytes, q->flags) : driver.cuMulticastBindAddr(q->object, b->at, q->pointer, b->bytes, q->flags);
	return b->of ? driver.cuMulticastBindMem_v2(q->object, b->device, b->at, q->handle, b->offset, b->bytes, q->flags)
		     : driver.cuMulticastBindMem(q->object, b->at, q->handle, b->offset, b->bytes, q->flags);
}

// at finds the memory of an address, and how far in it is; NULL: it is none of the program's with handles.
static struct memory *at(CUdeviceptr pointer, size_t bytes, size_t *offset)
{
	const struct mapping *m = mapping_at(mapping_after(pointer));

	if (!m || m->address > pointer || bytes > m->bytes || pointer - m->address > m->bytes - bytes)
		return NULL;
	*offset = m->offset + (pointer - m->address);
	return m->memory;
}

// bind binds what a request names: by a handle, or by an address.
static CUresult bind(struct request q)
{
	struct binding *b = &q.binding;
	struct memory *object;
	CUresult r;

	virtual_lock();
	object = virtual_of(q.object);
	b->memory = q.pointer ? at(q.pointer, b->bytes, &b->offset) : virtual_of(q.handle);
	if (b->memory && b->memory->range.count > 1) {
		virtual_unlock();
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	q.object = pin(object, q.object);
	q.handle = pin(b->memory, q.handle);
	if (b->memory && !b->of)
		b->device = b->memory->range.device;
	virtual_unlock();
	r = call(&q);
	virtual_lock();
	if (r == CUDA_SUCCESS && (!object || !object->multicast || !b->memory || b->memory->stays || b->memory->host || q.flags || !bound(object, b)))
		multicast_wild("it binds GPU memory to multicast objects in a way that the library does not look after (cuMulticastBindMem, cuMulticastBindAddr)");
	unpin(b->memory);
	unpin(object);
	virtual_unlock();
	return r;
}

CUresult hook_cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags)
{
	return bind((struct request){.object = object, .handle = handle, .binding = {.at = at, .bytes = bytes, .offset = offset}, .flags = flags});
}

CUresult hook_cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
	unsigned long long flags)
{
	return bind((struct request){.object = object, .handle = handle, .binding = {.at = at, .bytes = bytes, .offset = offset, .device = device, .of = 1}, .flags = flags});
}

// Memory of cuMemAlloc cannot be bound, although the library makes it with handles.
CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	if (!pointer || memory_covers(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return bind((struct request){.object = object, .pointer = pointer, .binding = {.at = at, .bytes = bytes}, .flags = flags});
}

CUresult hook_cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	if (!pointer || memory_covers(pointer, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	return bind((struct request){.object = object, .pointer = pointer, .binding = {.at = at, .bytes = bytes, .device = device, .of = 1}, .flags = flags});
}

// forget takes out what an object has of a device at some place; -1: all.
static void forget(struct multicast *m, CUdevice device, size_t at, size_t bytes)
{
	for (size_t i = 0; i < m->count;) {
		struct binding b = m->bindings[i];

		if (device >= 0 && (b.device != device || b.at < at || b.at - at >= bytes)) {
			i++;
			continue;
		}
		m->bindings[i] = m->bindings[--m->count];
		unpin(b.memory);
	}
}

void multicast_end(struct memory *m)
{
	struct multicast *of = m->multicast;

	if (of->count && (m->imported || m->range.pieces[0].passed >= 0))
		multicast_wild("it has released a multicast object that others may have, with memory bound to it");
	m->multicast = NULL;
	forget(of, -1, 0, 0);
	if (of->bindings)
		room_free(of->bindings, of->most * sizeof(*of->bindings));
	room_free(of, sizeof(*of));
}

CUresult hook_cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes)
{
	struct memory *m;
	CUresult r;

	virtual_lock();
	m = virtual_of(object);
	r = driver.cuMulticastUnbind(m ? m->range.pieces[0].handle : virtual_real(object), device, at, bytes);
	if (r == CUDA_SUCCESS && m && m->multicast)
		forget(m->multicast, device, at, bytes);
	virtual_unlock();
	return r;
}
