// The books of memory with handles.
#define _GNU_SOURCE
#include "virtual.h"
#include "multicast.h"
#include "precopy.h"
#include "shared.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

// MOST is how many allocations the library looks after; what is made beyond that stays the driver's.
#define MOST ((size_t)1 << 17)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories; // MOST places. The address of one is its handle, which can be none of the driver's
static size_t used, unused;     // places from the first that have been used; below unused none is free
static struct mapping *mappings;
static size_t count, most;

void virtual_lock(void) { pthread_mutex_lock(&lock); }
void virtual_unlock(void) { pthread_mutex_unlock(&lock); }

static struct memory *place(void)
{
	if (!memories)
		memories = room(MOST * sizeof(*memories));
	while (unused < used && memories[unused].range.count)
		unused++;
	if (!memories || unused == MOST)
		return NULL;
	used += unused == used;
	return &memories[unused];
}

// forget frees a place.
static void forget(struct memory *m)
{
	memset(m, 0, sizeof(*m));
	if (unused > (size_t)(m - memories))
		unused = m - memories;
}

struct memory *virtual_new(const CUmemAllocationProp *prop, size_t bytes, size_t piece)
{
	unsigned pieces = (bytes + piece - 1) / piece;
	struct memory *m = place();

	if (!m)
		return NULL;
	*m = (struct memory){.prop = *prop, .handles = 1};
	m->range = (struct range){.bytes = bytes, .asked = bytes, .device = prop->location.id, .prop = &m->prop, .count = pieces};
	m->range.pieces = pieces == 1 ? &m->one : room(pieces * sizeof(*m->range.pieces));
	if (!m->range.pieces) {
		forget(m);
		return NULL;
	}
	for (unsigned i = 0; i < pieces; i++)
		m->range.pieces[i] = (struct piece){.bytes = bytes - i * piece < piece ? bytes - i * piece : piece, .fd = -1, .passed = -1};
	return m;
}

CUresult virtual_end(struct memory *m)
{
	CUresult first = CUDA_SUCCESS;

	precopy_wait(m->range.pieces, m->range.count);
	if (m->multicast)
		multicast_end(m);
	if (m->reserved) {
		driver.cuMemUnmap(m->reserved, m->range.bytes);
		driver.cuMemAddressFree(m->reserved, m->range.bytes);
	}
	for (unsigned i = 0; i < m->range.count; i++) {
		struct piece *p = &m->range.pieces[i];
		CUresult r = p->handle ? driver.cuMemRelease(p->handle) : CUDA_SUCCESS;

		if (first == CUDA_SUCCESS)
			first = r;
		if (p->fd >= 0)
			close(p->fd);
		shared_forget(p);
	}
	if (m->range.pieces != &m->one)
		room_free(m->range.pieces, m->range.count * sizeof(*m->range.pieces));
	forget(m);
	return first;
}

CUresult virtual_unused(struct memory *m) { return m->handles || m->mapped ? CUDA_SUCCESS : virtual_end(m); }

CUmemGenericAllocationHandle virtual_handle(const struct memory *m) { return (uintptr_t)m; }

// own is true for a handle that is, or has been, the library's.
static int own(CUmemGenericAllocationHandle handle) { return memories && handle - (uintptr_t)memories < MOST * sizeof(*memories); }

struct memory *virtual_of(CUmemGenericAllocationHandle handle)
{
	struct memory *m = (struct memory *)(uintptr_t)handle;

	return own(handle) && (handle - (uintptr_t)memories) % sizeof(*m) == 0 && m->range.count ? m : NULL;
}

CUmemGenericAllocationHandle virtual_real(CUmemGenericAllocationHandle handle) { return own(handle) ? 0 : handle; }

struct memory *virtual_at(size_t place) { return place < used ? &memories[place] : NULL; }

struct mapping *mapping_at(size_t place) { return place < count ? &mappings[place] : NULL; }

size_t mapping_after(CUdeviceptr address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (mappings[middle].address + mappings[middle].bytes <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int mapping_room(void)
{
	size_t more = most ? 2 * most : 256;
	struct mapping *m;

	if (count < most)
		return 1;
	m = room(more * sizeof(*m));
	if (!m)
		return 0;
	if (mappings) {
		memcpy(m, mappings, count * sizeof(*m));
		room_free(mappings, most * sizeof(*m));
	}
	mappings = m;
	most = more;
	return 1;
}

void mapping_add(const struct mapping *m)
{
	size_t at = mapping_after(m->address);

	memmove(&mappings[at + 1], &mappings[at], (count - at) * sizeof(*m));
	mappings[at] = *m;
	m->memory->mapped++;
	count++;
}

void mapping_remove(size_t place)
{
	mappings[place].memory->mapped--;
	count--;
	memmove(&mappings[place], &mappings[place + 1], (count - place) * sizeof(*mappings));
}

CUresult mapping_map(const struct mapping *m)
{
	const struct range *range = &m->memory->range;
	size_t at = 0;

	if (range->count == 1)
		return driver.cuMemMap(m->address, m->bytes, m->offset, range->pieces[0].handle, 0);
	for (unsigned i = 0; at < m->bytes; i++) {
		const struct piece *p = &range->pieces[i];
		size_t n = m->bytes - at < p->bytes ? m->bytes - at : p->bytes;
		CUresult r = driver.cuMemMap(m->address + at, n, 0, p->handle, 0);

		if (r != CUDA_SUCCESS) {
			if (at)
				driver.cuMemUnmap(m->address, at);
			return r;
		}
		at += n;
	}
	return CUDA_SUCCESS;
}

int virtual_find(CUdeviceptr pointer, struct range *r)
{
	const struct mapping *m;
	int found;

	if (!__atomic_load_n(&count, __ATOMIC_RELAXED))
		return 0;
	virtual_lock();
	m = mapping_at(mapping_after(pointer));
	found = m && m->address <= pointer && !m->memory->imported && !m->memory->host && !m->memory->multicast; // the driver knows more of these
	if (found) {
		*r = m->memory->range;
		r->address = m->address;
		r->bytes = r->asked = m->bytes;
	}
	virtual_unlock();
	return found;
}

int virtual_goes(const struct memory *m) { return m->range.count && !m->stays && !m->imported && !m->host && !m->multicast; }

// foreign counts the pieces of memory that are there and not the process's own.
static size_t foreign(const struct memory *m)
{
	size_t n = 0;

	for (unsigned p = 0; p < m->range.count && !m->imported && !m->host; p++)
		n += m->range.pieces[p].handle && !m->range.pieces[p].own;
	return n;
}

size_t virtual_pieces(void)
{
	size_t n = 0;

	virtual_lock();
	for (size_t i = 0; i < used; i++)
		n += virtual_goes(&memories[i]) ? memories[i].range.count : foreign(&memories[i]);
	virtual_unlock();
	return n;
}

size_t virtual_foreign(void)
{
	size_t n = 0;

	virtual_lock();
	for (size_t i = 0; i < used; i++)
		n += foreign(&memories[i]);
	virtual_unlock();
	return n;
}

int virtual_each(int (*f)(const struct range *r, void *with), void *with)
{
	int result = 0;

	virtual_lock();
	for (size_t i = 0; i < used && !result; i++)
		if (virtual_goes(&memories[i]))
			result = f(&memories[i].range, with);
	virtual_unlock();
	return result;
}

void virtual_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	for (size_t i = 0; i < used; i++) {
		for (unsigned p = 0; p < memories[i].range.count; p++) {
			if (memories[i].range.pieces[p].fd >= 0)
				close(memories[i].range.pieces[p].fd);
			shared_forget(&memories[i].range.pieces[p]);
		}
	}
	if (used)
		memset(memories, 0, used * sizeof(*memories));
	used = unused = count = 0;
}
