// The books of managed memory: spans, and the allocations in them.
#define _GNU_SOURCE
#include "managed.h"
#include "gate.h"
#include "range.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// A span for small allocations has ARENA bytes. Each chunk of it has allocations of one size, a power of two from SMALLEST on. Larger ones have spans of their own.
#define ARENA ((size_t)64 << 20)
#define SMALLEST ((size_t)512)
#define LARGEST (CHUNK_BYTES / 2)

// IDS are those of buffers, which are none of the driver's.
#define IDS (UINT64_C(1) << 62)

struct slot { size_t asked; uint64_t id; }; // asked is 0: it is free
struct slab { size_t size; unsigned used, next; struct slot *slots; }; // next: where to look first

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct span **spans; // in ascending order of addresses
static size_t count, most;
static uint64_t ids = IDS;
static uintptr_t lowest = UINTPTR_MAX, highest; // of all that there has been

void managed_lock(void) { pthread_mutex_lock(&lock); }
void managed_unlock(void) { pthread_mutex_unlock(&lock); }

// asked is what the variable asks for.
static enum { UNKNOWN, BY_DRIVER, BY_LIBRARY, ON_HOST } asked(void)
{
	static int known;
	const char *text;

	if (!known) {
		text = getenv(MANAGED_VARIABLE);
		known = text && !strcmp(text, "driver") ? BY_DRIVER : text && !strcmp(text, "host") ? ON_HOST : BY_LIBRARY;
	}
	return known;
}

int managed_by_library(void) { return asked() != BY_DRIVER; }

int managed_on_host(void) { return asked() == ON_HOST; }

int managed_near(CUdeviceptr pointer, size_t bytes)
{
	uintptr_t low = __atomic_load_n(&lowest, __ATOMIC_ACQUIRE);

	return low != UINTPTR_MAX && pointer < __atomic_load_n(&highest, __ATOMIC_ACQUIRE) && bytes > 0 && pointer + bytes > low;
}

// after returns the place of the first span that begins after an address.
static size_t after(CUdeviceptr pointer)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (spans[middle]->address <= pointer)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct span *managed_span(CUdeviceptr pointer)
{
	size_t place = after(pointer);

	return place && pointer - spans[place - 1]->address < spans[place - 1]->bytes ? spans[place - 1] : NULL;
}

struct span *managed_span_at(size_t place) { return place < count ? spans[place] : NULL; }

int managed_covers(CUdeviceptr pointer, size_t bytes)
{
	size_t place;
	int found;

	if (!managed_near(pointer, bytes))
		return 0;
	managed_lock();
	place = after(pointer);
	found = managed_span(pointer) || (place < count && spans[place]->address - pointer < bytes);
	managed_unlock();
	return found;
}

// slot returns the one that a pointer into a span for small allocations is in; NULL where it is in none.
static struct slot *slot(const struct span *s, CUdeviceptr pointer, CUdeviceptr *address)
{
	size_t at = pointer - s->address, in = at % CHUNK_BYTES;
	const struct slab *slab = &s->slabs[at / CHUNK_BYTES];
	struct slot *found;

	if (!slab->slots)
		return NULL;
	found = &slab->slots[in / slab->size];
	*address = pointer - in % slab->size;
	return found->asked ? found : NULL;
}

// look is managed_find for whom has the lock.
static int look(CUdeviceptr pointer, struct allocation *a)
{
	struct span *s = managed_span(pointer);
	struct slot *found;

	if (!s)
		return 0;
	*a = (struct allocation){s->address, s->asked, s->id, s};
	if (s->slabs) {
		found = slot(s, pointer, &a->address);
		if (!found)
			return 0;
		a->bytes = found->asked;
		a->id = found->id;
	}
	return pointer - a->address < a->bytes;
}

int managed_find(CUdeviceptr pointer, struct allocation *a)
{
	int found;

	if (!managed_near(pointer, 1))
		return 0;
	managed_lock();
	found = look(pointer, a);
	managed_unlock();
	return found;
}

int managed_used(const struct span *s, size_t chunk) { return !s->slabs || s->slabs[chunk].slots; }

static int grow(void)
{
	size_t more = most ? 2 * most : 64;
	struct span **all;

	if (count < most)
		return 1;
	all = room(more * sizeof(*all));
	if (!all)
		return 0;
	if (spans) {
		memcpy(all, spans, count * sizeof(*all));
		room_free(spans, most * sizeof(*all));
	}
	spans = all;
	most = more;
	return 1;
}

// tables is how much a span's books take.
static size_t tables(size_t bytes, int small)
{
	struct span s = {.bytes = bytes, .unit = managed_unit(small)};

	return sizeof(s) + managed_units(&s) * sizeof(struct unit) + bytes / CHUNK_BYTES * (sizeof(struct chunk) + (small ? sizeof(struct slab) : 0));
}

static struct span *span_new(size_t bytes, int small, const struct pool *pool)
{
	struct span *s = room(tables(bytes, small));

	if (!s)
		return NULL;
	s->bytes = bytes;
	s->unit = managed_unit(small);
	s->units = (struct unit *)(s + 1);
	s->chunks = (struct chunk *)(s->units + managed_units(s));
	s->slabs = small ? (struct slab *)(s->chunks + bytes / CHUNK_BYTES) : NULL;
	s->away = bytes / CHUNK_BYTES;
	s->pool = pool;
	for (size_t i = 0; i < bytes / CHUNK_BYTES; i++) {
		s->chunks[i].preferred = (short)(pool ? managed_place(pool->location) : NOWHERE_ADVISED);
		s->chunks[i].prefetched = NOWHERE_ADVISED;
	}
	return s;
}

// span_make reserves a span, and has the host's pages ready for being touched. Without a context it lasts.
static CUresult span_make(CUcontext context, size_t bytes, size_t asked, const struct pool *pool, struct span **made)
{
	struct span *s = grow() ? span_new(bytes, !asked, pool) : NULL;
	CUresult r = s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	size_t place;

	if (r == CUDA_SUCCESS && context)
		r = driver.cuCtxGetDevice(&s->device);
	if (r == CUDA_SUCCESS)
		r = driver.cuMemAddressReserve(&s->address, bytes, CHUNK_BYTES, 0, 0);
	if (r == CUDA_SUCCESS && managed_drop((void *)s->address, bytes) != CUDA_SUCCESS) {
		driver.cuMemAddressFree(s->address, bytes);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r != CUDA_SUCCESS) {
		if (s)
			room_free(s, tables(bytes, !asked));
		return r;
	}
	s->context = context;
	s->lasts = !context;
	s->asked = asked;
	s->id = ++ids;
	place = after(s->address);
	memmove(&spans[place + 1], &spans[place], (count - place) * sizeof(*spans));
	spans[place] = s;
	count++;
	if (s->address < lowest)
		__atomic_store_n(&lowest, s->address, __ATOMIC_RELEASE);
	if (s->address + bytes > highest)
		__atomic_store_n(&highest, s->address + bytes, __ATOMIC_RELEASE);
	*made = s;
	return CUDA_SUCCESS;
}

static CUresult span_free(struct span *s)
{
	size_t place = after(s->address) - 1;
	CUresult r = managed_end(s);

	count--;
	memmove(&spans[place], &spans[place + 1], (count - place) * sizeof(*spans));
	for (size_t i = 0; s->slabs && i < s->bytes / CHUNK_BYTES; i++)
		if (s->slabs[i].slots)
			room_free(s->slabs[i].slots, CHUNK_BYTES / s->slabs[i].size * sizeof(struct slot));
	room_free(s, tables(s->bytes, s->slabs != NULL));
	return r;
}

static size_t rounded(size_t bytes)
{
	size_t size = SMALLEST;

	while (size < bytes)
		size *= 2;
	return size;
}

// take takes a slot of a slab; false where it has none, or is for others.
static int take(struct span *s, size_t chunk, size_t bytes, CUdeviceptr *pointer)
{
	struct slab *slab = &s->slabs[chunk];
	size_t size = rounded(bytes), slots = CHUNK_BYTES / size;

	if (!slab->slots) {
		slab->slots = room(slots * sizeof(*slab->slots));
		slab->size = size;
		slab->used = slab->next = 0;
	}
	if (!slab->slots || slab->size != size || slab->used == slots)
		return 0;
	while (slab->slots[slab->next].asked)
		slab->next = (slab->next + 1) % slots;
	slab->slots[slab->next] = (struct slot){bytes, ++ids};
	slab->used++;
	*pointer = s->address + chunk * CHUNK_BYTES + slab->next * size;
	return 1;
}

static CUresult alloc_small(CUcontext context, size_t bytes, const struct pool *pool, CUdeviceptr *pointer)
{
	struct span *s;
	CUresult r;

	for (size_t place = count; place-- > 0;)
		for (size_t chunk = 0; spans[place]->slabs && spans[place]->context == context && spans[place]->pool == pool && chunk < ARENA / CHUNK_BYTES; chunk++)
			if (take(spans[place], chunk, bytes, pointer))
				return CUDA_SUCCESS;
	r = span_make(context, ARENA, 0, pool, &s);
	return r == CUDA_SUCCESS && !take(s, 0, bytes, pointer) ? CUDA_ERROR_OUT_OF_MEMORY : r;
}

// alloc makes an allocation in a context, or one that lasts.
static CUresult alloc(CUcontext context, size_t bytes, const struct pool *pool, CUdeviceptr *pointer)
{
	struct span *s = NULL;
	CUresult r;

	managed_lock();
	if (!managed_catch())
		r = CUDA_ERROR_OPERATING_SYSTEM;
	else if (context && bytes <= LARGEST)
		r = alloc_small(context, bytes, pool, pointer);
	else
		r = span_make(context, (bytes + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1), bytes, pool, &s);
	if (s)
		*pointer = s->address;
	managed_unlock();
	return r;
}

CUresult managed_alloc(CUdeviceptr *pointer, size_t bytes, const struct pool *pool)
{
	CUcontext context = NULL;
	CUresult r = driver.cuCtxGetCurrent(&context);

	if (bytes > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS)
		return r;
	return context ? alloc(context, bytes, pool, pointer) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult managed_alloc_lasting(CUdeviceptr *pointer, size_t bytes) { return alloc(NULL, bytes, NULL, pointer); }

int managed_free(CUdeviceptr pointer, CUresult *result)
{
	CUdeviceptr address;
	struct allocation a;
	struct slab *slab;
	int found;

	if (!managed_near(pointer, 1))
		return 0;
	managed_lock();
	found = look(pointer, &a) && a.address == pointer;
	if (found)
		*result = managed_idle(0);
	if (found && *result == CUDA_ERROR_NOT_READY) {
		*result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	} else if (found && !a.span->slabs) {
		CUresult r = span_free(a.span);

		if (*result == CUDA_SUCCESS)
			*result = r;
	} else if (found) {
		slab = &a.span->slabs[(pointer - a.span->address) / CHUNK_BYTES];
		*slot(a.span, pointer, &address) = (struct slot){0};
		slab->used--;
	}
	managed_unlock();
	return found;
}

// used returns how many bytes of a span are in use.
static size_t used(const struct span *s)
{
	size_t bytes = s->asked;

	for (size_t i = 0; s->slabs && i < s->bytes / CHUNK_BYTES; i++)
		bytes += s->slabs[i].used * s->slabs[i].size;
	return bytes;
}

size_t managed_pool_used(const struct pool *pool)
{
	size_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		if (spans[i]->pool == pool)
			bytes += used(spans[i]);
	return bytes;
}

int managed_trim(const struct pool *pool)
{
	CUresult waited = CUDA_ERROR_NOT_FOUND;
	int left = 0;

	for (size_t i = count; i-- > 0;) {
		if (spans[i]->pool != pool)
			continue;
		if (!used(spans[i]) && waited == CUDA_ERROR_NOT_FOUND)
			waited = managed_idle(0);
		if (!used(spans[i]) && waited == CUDA_SUCCESS)
			span_free(spans[i]);
		else
			left = 1;
	}
	return left;
}

void managed_context_ends(CUcontext context)
{
	managed_lock();
	for (size_t i = 0; i < count; i++) {
		struct span *s = spans[i];
		CUresult r = s->lasts && s->context == context ? managed_idle(0) : CUDA_ERROR_NOT_FOUND;

		for (size_t u = 0; r == CUDA_SUCCESS && u < managed_units(s); u++)
			r = managed_leave(s, u);
	}
	managed_unlock();
}

void managed_context_ended(CUcontext context)
{
	managed_lock();
	managed_unuse(context);
	managed_copy_ended(context);
	for (size_t i = count; i-- > 0;) {
		if (spans[i]->context != context)
			continue;
		if (spans[i]->lasts)
			spans[i]->context = NULL;
		else
			span_free(spans[i]);
	}
	managed_unlock();
}

// block returns what all small allocations of a chunk have in common.
static uint64_t block(const struct allocation *a) { return a->span->slabs ? IDS | (a->address - a->address % CHUNK_BYTES) : a->id; }

static size_t mapped(const struct allocation *a)
{
	size_t bytes = a->span->slabs ? CHUNK_BYTES : a->span->bytes;

	return a->span->pool ? managed_reserved(bytes) : bytes;
}

static struct chunk *first_of(const struct allocation *a) { return &a->span->chunks[(a->address - a->span->address) / CHUNK_BYTES]; }

int managed_synchronizes(CUdeviceptr pointer, int on)
{
	struct allocation a;

	if (!managed_find(pointer, &a))
		return 0;
	first_of(&a)->apart = !on;
	return 1;
}

int managed_attribute(void *data, int attribute, CUdeviceptr pointer, CUresult *result)
{
	struct allocation a;

	if (!managed_find(pointer, &a))
		return 0;
	*result = data ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	if (!data)
		return 1;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = a.span->pool ? NULL : a.span->context; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned *)data = CU_MEMORYTYPE_DEVICE; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
	case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr *)data = pointer; break;
	case CU_POINTER_ATTRIBUTE_P2P_TOKENS: memset(data, 0, 2 * sizeof(uint64_t)); break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = !first_of(&a)->apart; break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)data = a.id; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(uint64_t *)data = block(&a); break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = 1; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = a.span->device; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(char *)data = 0; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = a.address; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = a.bytes; break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = 0; break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(const void **)data = a.span->pool; break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(uint64_t *)data = CU_MEM_ACCESS_FLAGS_PROT_READWRITE; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = mapped(&a); break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = a.address; break;
	default: *result = CUDA_ERROR_INVALID_VALUE;
	}
	return 1;
}

void managed_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	for (size_t i = 0; i < count; i++)
		for (size_t u = 0; u < managed_units(spans[i]); u++)
			if (spans[i]->units[u].range.count && spans[i]->units[u].piece.fd >= 0)
				close(spans[i]->units[u].piece.fd);
	managed_fault_forked();
	managed_copy_forked();
	managed_empty();
	count = 0;
	lowest = UINTPTR_MAX;
	highest = 0;
}
