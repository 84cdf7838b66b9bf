// PINNED chunks of managed memory: memory of the host in place of a device's, for units that have no room on their device. The host and all devices reach it at the same addresses, devices over the link. It does not change sides.
#define _GNU_SOURCE
#include "managed.h"
#include "gate.h"
#include "range.h"

#include <string.h>
#include <sys/mman.h>

// Managed memory leaves this part of a device's memory free, SPARED bytes at most. The driver needs it for code, stacks and pools, and a checkpoint for the context of the process that takes the memory, some 500 MiB.
#define PART 32
#define SPARED ((size_t)1 << 30)

int managed_fits(const struct range *r)
{
	CUcontext context = r->context;
	size_t available = 0, total = 0;
	CUresult result = driver.cuCtxPushCurrent_v2(context);

	if (result != CUDA_SUCCESS)
		return 0;
	result = driver.cuMemGetInfo_v2(&available, &total);
	driver.cuCtxPopCurrent_v2(&context);
	return result == CUDA_SUCCESS && available >= r->bytes + (total / PART < SPARED ? total / PART : SPARED);
}

// chunks returns how many chunks a unit has, and the number of the first one.
static size_t chunks(const struct span *s, size_t number, size_t *first)
{
	const struct range *r = &s->units[number].range;

	*first = (r->address - s->address) / CHUNK_BYTES;
	return r->bytes / CHUNK_BYTES;
}

int managed_advised(const struct span *s, size_t number)
{
	size_t first, n = chunks(s, number, &first);

	if (managed_on_host())
		return CPU;
	for (size_t i = first + 1; i < first + n; i++)
		if (s->chunks[i].preferred != s->chunks[first].preferred)
			return NOWHERE_ADVISED;
	return s->chunks[first].preferred;
}

// MOST is how many chunks a unit has at most.
#define MOST 16

// aside contains the addresses of a unit's host pages while the library keeps them elsewhere.
struct aside { char *pages[MOST]; };

// away moves a unit's host pages elsewhere. A thread that touches their addresses has a fault, and waits for the lock.
static CUresult away(struct span *s, size_t first, size_t n, struct aside *a)
{
	for (size_t i = 0; i < n; i++) {
		char *at = managed_at(s, first + i), *to;

		if (s->chunks[first + i].side != HOST)
			continue;
		to = mmap(NULL, CHUNK_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (to == MAP_FAILED)
			return CUDA_ERROR_OUT_OF_MEMORY;
		// The addresses stay mapped, so that nothing else comes there.
		if (mprotect(at, CHUNK_BYTES, PROT_NONE) || mremap(at, CHUNK_BYTES, CHUNK_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) == MAP_FAILED) {
			mprotect(at, CHUNK_BYTES, PROT_READ | PROT_WRITE);
			munmap(to, CHUNK_BYTES);
			return CUDA_ERROR_OUT_OF_MEMORY;
		}
		a->pages[i] = to;
		mprotect(to, CHUNK_BYTES, PROT_READ | PROT_WRITE);
	}
	return CUDA_SUCCESS;
}

// back moves host pages to the addresses of their unit, at which the driver has nothing mapped any more. These chunks are HOST then.
static CUresult back(struct span *s, size_t first, size_t n, struct aside *a)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < n; i++) {
		if (!a->pages[i])
			continue;
		if (mremap(a->pages[i], CHUNK_BYTES, CHUNK_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, managed_at(s, first + i)) == MAP_FAILED)
			r = CUDA_ERROR_OPERATING_SYSTEM;
		else
			managed_set(s, first + i, HOST);
		a->pages[i] = NULL;
	}
	return r;
}

static CUmemAccessDesc host_access(const CUmemLocation *host) { return (CUmemAccessDesc){*host, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}; }

// fill copies host pages into a unit's new memory, before the driver maps that at the unit's addresses.
static CUresult fill(const struct unit *u, const CUmemLocation *host, size_t n, const struct aside *a)
{
	CUmemAccessDesc access = host_access(host);
	CUdeviceptr at = 0;
	CUresult r = driver.cuMemAddressReserve(&at, u->range.bytes, CHUNK_BYTES, 0, 0);

	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuMemMap(at, u->range.bytes, 0, u->piece.handle, 0);
	if (r == CUDA_SUCCESS) {
		r = driver.cuMemSetAccess(at, u->range.bytes, &access, 1);
		for (size_t i = 0; r == CUDA_SUCCESS && i < n; i++) {
			char *to = (char *)at + i * CHUNK_BYTES;

			if (a->pages[i])
				memcpy(to, a->pages[i], CHUNK_BYTES);
			else
				memset(to, 0, CHUNK_BYTES); // new memory has what others have left there
		}
		driver.cuMemUnmap(at, u->range.bytes);
	}
	driver.cuMemAddressFree(at, u->range.bytes);
	return r;
}

// map maps a unit's memory of the host, for the host and all devices.
static CUresult map(const struct unit *u, const CUmemLocation *host)
{
	CUmemAccessDesc access[MAX_DEVICES + 1] = {host_access(host)};
	uint64_t all = range_devices();
	size_t n = 1;
	CUresult r = driver.cuMemMap(u->range.address, u->range.bytes, 0, u->piece.handle, 0);

	if (r != CUDA_SUCCESS)
		return r;
	for (CUdevice d = 0; d < MAX_DEVICES; d++)
		if (all >> d & 1)
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, d}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	r = driver.cuMemSetAccess(u->range.address, u->range.bytes, access, n);
	if (r == CUDA_SUCCESS && madvise((void *)u->range.address, u->range.bytes, MADV_DONTFORK)) // a child would share it
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r != CUDA_SUCCESS)
		driver.cuMemUnmap(u->range.address, u->range.bytes);
	return r;
}

CUresult managed_pin(struct span *s, size_t number)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}};
	struct unit *u = &s->units[number];
	struct aside a = {{0}};
	size_t first, n = chunks(s, number, &first);
	int node = 0;
	CUresult r;

	if (driver.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, s->device) == CUDA_SUCCESS && node > 0)
		prop.location.id = node;
	r = driver.cuMemCreate(&u->piece.handle, u->range.bytes, &prop, 0);
	if (r != CUDA_SUCCESS)
		return r;
	r = away(s, first, n, &a);
	if (r == CUDA_SUCCESS) {
		r = fill(u, &prop.location, n, &a);
		if (r == CUDA_SUCCESS)
			r = map(u, &prop.location);
		if (r != CUDA_SUCCESS) // whatever the driver has left at the addresses
			managed_drop((void *)u->range.address, u->range.bytes);
	}
	if (r != CUDA_SUCCESS) {
		driver.cuMemRelease(u->piece.handle);
		back(s, first, n, &a);
		return r;
	}
	u->range.count = 1;
	u->pinned = 1;
	for (size_t i = 0; i < n; i++) {
		managed_set(s, first + i, PINNED);
		if (a.pages[i])
			munmap(a.pages[i], CHUNK_BYTES);
	}
	return r;
}

// copy copies a PINNED unit to new pages. Until the unit has left, the host may only read it: a thread that writes waits for the lock.
static CUresult copy(struct span *s, size_t first, size_t n, struct aside *a)
{
	struct transfer all[MOST];

	if (mprotect(managed_at(s, first), n * CHUNK_BYTES, PROT_READ))
		return CUDA_ERROR_OPERATING_SYSTEM;
	for (size_t i = 0; i < n; i++) {
		a->pages[i] = managed_fresh();
		if (!a->pages[i])
			return CUDA_ERROR_OUT_OF_MEMORY;
		all[i] = (struct transfer){a->pages[i], managed_at(s, first + i)};
	}
	return managed_copy(WITHIN_HOST, NULL, all, n);
}

// leave_pinned is managed_leave for a PINNED unit.
static CUresult leave_pinned(struct span *s, size_t number)
{
	struct unit *u = &s->units[number];
	struct aside a = {{0}};
	size_t first, n = chunks(s, number, &first);
	CUresult r = copy(s, first, n, &a), moved;

	if (r == CUDA_SUCCESS)
		r = managed_unmap(u);
	if (u->range.count) { // the driver has it still
		for (size_t i = 0; i < n && a.pages[i]; i++)
			munmap(a.pages[i], CHUNK_BYTES);
		mprotect(managed_at(s, first), n * CHUNK_BYTES, PROT_READ | PROT_WRITE);
		return r;
	}
	moved = back(s, first, n, &a);
	return moved == CUDA_SUCCESS ? r : moved;
}

CUresult managed_leave(struct span *s, size_t number)
{
	struct unit *u = &s->units[number];
	size_t first, n = chunks(s, number, &first);
	CUresult r = CUDA_SUCCESS;

	if (!u->range.count)
		return CUDA_SUCCESS;
	if (u->pinned)
		return leave_pinned(s, number);
	r = managed_fetch(s, first, first + n);
	for (size_t i = first; r == CUDA_SUCCESS && i < first + n; i++)
		if (s->chunks[i].side != UNTOUCHED)
			r = managed_to_host(s, i, 1);
	return r == CUDA_SUCCESS ? managed_unmap(u) : r;
}

CUresult managed_promote(struct span *s, size_t from, size_t to)
{
	CUresult r = CUDA_SUCCESS;
	int idle = 0;

	for (size_t u = from * CHUNK_BYTES / s->unit; r == CUDA_SUCCESS && u <= (to - 1) * CHUNK_BYTES / s->unit; u++) {
		if (!s->units[u].pinned || managed_advised(s, u) == CPU || !managed_fits(&s->units[u].range))
			continue;
		r = idle ? CUDA_SUCCESS : managed_idle(0);
		idle = 1;
		if (r == CUDA_SUCCESS)
			r = managed_leave(s, u);
	}
	return r;
}

CUresult managed_withdraw(void)
{
	CUresult r = CUDA_SUCCESS;
	struct span *s;

	managed_lock();
	for (size_t i = 0; r == CUDA_SUCCESS && (s = managed_span_at(i)); i++)
		for (size_t u = 0; r == CUDA_SUCCESS && u < managed_units(s); u++)
			if (s->units[u].pinned)
				r = managed_leave(s, u);
	managed_empty();
	managed_unlock();
	return r;
}

unsigned managed_pinned(void)
{
	unsigned n = 0;
	struct span *s;

	managed_lock();
	for (size_t i = 0; (s = managed_span_at(i)); i++)
		for (size_t u = 0; u < managed_units(s); u++)
			n += s->units[u].pinned;
	managed_unlock();
	return n;
}

int managed_evict(CUdevice device, size_t bytes)
{
	size_t left = 0;
	struct span *s;
	int idle = 0;

	managed_lock();
	for (size_t i = 0; left < bytes && (s = managed_span_at(i)); i++)
		for (size_t u = 0; left < bytes && u < managed_units(s); u++) {
			struct unit *unit = &s->units[u];

			if (!unit->range.count || unit->pinned || unit->range.device != device)
				continue;
			idle = idle || managed_idle(0) == CUDA_SUCCESS;
			if (!idle || managed_leave(s, u) != CUDA_SUCCESS)
				goto end;
			left += unit->range.bytes;
		}
end:
	managed_unlock();
	return left >= bytes;
}
