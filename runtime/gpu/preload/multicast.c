#define _GNU_SOURCE
#include "multicast.h"
#include "able.h"
#include "context.h"
#include "shared.h"

#include <string.h>
#include <unistd.h>

static int wild;

void multicast_wild(const char *reason)
{
	__atomic_store_n(&wild, 1, __ATOMIC_RELEASE);
	unknown(reason);
}

int multicast_is_wild(void) { return __atomic_load_n(&wild, __ATOMIC_ACQUIRE); }

int multicast_import(struct memory *m)
{
	if (!m->multicast)
		m->multicast = room(sizeof(*m->multicast));
	return m->multicast != NULL;
}

// used reports whether something is bound to an object, or it is mapped.
static int used(const struct memory *m) { return m->mapped || m->multicast->count; }

unsigned multicast_devices(const struct memory *m) { return __builtin_popcountll(m->multicast->devices); }

// next goes to the next object after a place, at first 0; NULL: there is none.
static struct memory *next(size_t *place)
{
	struct memory *m;

	while ((m = virtual_at((*place)++)))
		if (m->range.count && m->multicast)
			return m;
	return NULL;
}

unsigned multicast_count(void)
{
	struct memory *m;
	unsigned n = 0;

	virtual_lock();
	for (size_t i = 0; (m = next(&i)); n++)
		if (!m->imported && m->range.pieces[0].passed < 0 && used(m) && multicast_devices(m) < m->multicast->prop.numDevices)
			multicast_wild("it uses a multicast object with a process that has ended");
	virtual_unlock();
	return n;
}

int multicast_there(void)
{
	struct memory *m;

	for (size_t i = 0; (m = next(&i));)
		if (m->range.pieces[0].handle)
			return 1;
	return 0;
}

int multicast_apart(void)
{
	struct mapping *mapping;
	struct memory *m;

	for (size_t i = 0; (m = next(&i));) {
		if (!m->range.pieces[0].handle || m->multicast->added != m->multicast->devices)
			return 1;
		for (size_t b = 0; b < m->multicast->count; b++)
			if (m->multicast->bindings[b].gone)
				return 1;
	}
	for (size_t i = 0; (mapping = mapping_at(i)); i++)
		if (mapping->memory->multicast && mapping->gone)
			return 1;
	return 0;
}

// on makes a context on a device current, if there is one; off ends that.
static int on(CUdevice device)
{
	CUcontext context = context_on(device);

	return context && driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

static void off(int pushed)
{
	if (pushed)
		driver.cuCtxPopCurrent_v2(&(CUcontext){NULL});
}

static CUresult unbind(struct memory *m)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; r == CUDA_SUCCESS && i < m->multicast->count; i++) {
		struct binding *b = &m->multicast->bindings[i];
		int pushed;

		if (b->gone)
			continue;
		pushed = on(b->device);
		r = driver.cuMulticastUnbind(m->range.pieces[0].handle, b->device, b->at, b->bytes);
		off(pushed);
		b->gone = r == CUDA_SUCCESS;
	}
	return r == CUDA_SUCCESS ? mappings_away(m) : r;
}

CUresult multicast_unbind(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = next(&i));)
		if (m->range.pieces[0].handle)
			r = unbind(m);
	return r;
}

static CUresult bind(struct memory *m)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; r == CUDA_SUCCESS && i < m->multicast->count; i++) {
		struct binding *b = &m->multicast->bindings[i];
		CUmemGenericAllocationHandle object = m->range.pieces[0].handle, handle = b->memory->range.pieces[0].handle;
		int pushed;

		if (!b->gone)
			continue;
		pushed = on(b->device);
		r = b->of ? driver.cuMulticastBindMem_v2(object, b->device, b->at, handle, b->offset, b->bytes, 0) : driver.cuMulticastBindMem(object, b->at, handle, b->offset, b->bytes, 0);
		off(pushed);
		b->gone = r != CUDA_SUCCESS;
	}
	return r == CUDA_SUCCESS ? mappings_back(m) : r;
}

CUresult multicast_bind(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = next(&i));)
		r = m->range.pieces[0].handle && m->multicast->added == m->multicast->devices ? bind(m) : CUDA_ERROR_ILLEGAL_STATE;
	return r;
}

// release lets go of an object that is not mapped. A descriptor has the object, too, so all are closed first.
static CUresult release(struct memory *m)
{
	struct piece *p = &m->range.pieces[0];
	CUresult r;

	shared_forget(p);
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
	r = driver.cuMemRelease(p->handle);
	if (r != CUDA_SUCCESS)
		return r;
	p->handle = 0;
	m->multicast->added = 0;
	return CUDA_SUCCESS;
}

CUresult multicast_release(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = next(&i));)
		if (m->range.pieces[0].handle)
			r = release(m);
	return r;
}

// clear lets go of an object that is there.
static CUresult clear(struct memory *m)
{
	CUresult r = CUDA_SUCCESS;

	if (!m->range.pieces[0].handle)
		return r;
	r = unbind(m);
	return r == CUDA_SUCCESS ? release(m) : r;
}

static CUresult make(struct memory *m)
{
	struct piece *p = &m->range.pieces[0];
	int pushed = m->multicast->devices ? on(__builtin_ctzll(m->multicast->devices)) : 0;
	CUresult r = driver.cuMulticastCreate(&p->handle, &m->multicast->prop);

	off(pushed);
	if (r != CUDA_SUCCESS)
		p->handle = 0;
	return r;
}

CUresult multicast_renew(struct memory *m)
{
	CUresult r = clear(m);

	return r == CUDA_SUCCESS ? make(m) : r;
}

CUresult multicast_take(struct memory *m, int fd)
{
	struct piece *p = &m->range.pieces[0];
	CUresult r = multicast_import(m) ? clear(m) : CUDA_ERROR_OUT_OF_MEMORY;

	if (r == CUDA_SUCCESS) {
		r = driver.cuMemImportFromShareableHandle(&p->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (r != CUDA_SUCCESS)
			p->handle = 0;
	}
	if (r != CUDA_SUCCESS)
		close(fd);
	else
		p->fd = fd;
	return r;
}

CUresult multicast_join(void)
{
	CUresult r = CUDA_SUCCESS;
	struct memory *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = next(&i));) {
		if (!m->range.pieces[0].handle)
			r = m->imported ? CUDA_ERROR_ILLEGAL_STATE : make(m);
		for (CUdevice d = 0; r == CUDA_SUCCESS && d < MAX_DEVICES; d++) {
			int pushed;

			if (!((m->multicast->devices & ~m->multicast->added) >> d & 1))
				continue;
			pushed = on(d);
			r = driver.cuMulticastAddDevice(m->range.pieces[0].handle, d);
			off(pushed);
			if (r == CUDA_SUCCESS)
				m->multicast->added |= UINT64_C(1) << d;
		}
	}
	return r;
}
