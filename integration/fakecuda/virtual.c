#define _GNU_SOURCE
#include "handles.h"
#include "directory.h"
#include "driver.h"
#include "orders.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct handle handles[MOST];
struct mapping mappings[MOST];
struct reservation reservations[MOST];

// The value of a handle is its number and a mark, so that a piece of memory cannot be taken for one.
#define MARK 0xcafe000000ull
#define HOST_NAME "fakecuda-host"

struct handle *handle_of(CUmemGenericAllocationHandle value)
{
	uint64_t n = value - MARK;

	return n < MOST && handles[n].bytes ? &handles[n] : NULL;
}

struct handle *handle_new(void)
{
	for (struct handle *h = handles; h < handles + MOST; h++)
		if (!h->bytes)
			return h;
	return NULL;
}

CUmemGenericAllocationHandle value_of(const struct handle *h) { return MARK + (h - handles); }

CUresult order_of(const char *call, CUmemGenericAllocationHandle value)
{
	const struct handle *h = NULL;
	CUuuid device;

	if (!orders_given())
		return CUDA_SUCCESS;
	if (enter() == CUDA_SUCCESS && (h = handle_of(value)))
		device = devices[h->device].uuid;
	leave(CUDA_SUCCESS);
	return orders_on(call, h ? &device : NULL);
}

CUresult order_at(const char *call, CUdeviceptr pointer)
{
	CUcontext context;
	CUdeviceptr base;
	CUuuid device;
	size_t bytes;
	int number, known;

	if (!orders_given())
		return CUDA_SUCCESS;
	known = enter() == CUDA_SUCCESS && (memory_find(pointer, &base, &bytes, &context, &number) || virtual_find(pointer, &base, &bytes, &number));
	if (known)
		device = devices[number].uuid;
	leave(CUDA_SUCCESS);
	return orders_on(call, known ? &device : NULL);
}

static void let_go(struct handle *h)
{
	if (!h->released || h->mapped)
		return;
	if (h->team)
		team_drop(h);
	else
		directory_let_go(&devices[h->device], h->fd);
	if (h->saved)
		munmap(h->saved, h->bytes);
	memset(h, 0, sizeof(*h));
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option)
{
	(void)prop;
	(void)option;
	*bytes = GRANULARITY;
	return leave(enter());
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)
{
	char name[MEMORY_NAME];
	struct handle *h;
	int host = prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA, known = !host && prop->location.id >= 0 && prop->location.id < devices_count;
	CUresult r = orders_on("cuMemCreate", known ? &devices[prop->location.id].uuid : NULL);

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_new();
	if (r == CUDA_SUCCESS && (!bytes || bytes % GRANULARITY || flags || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !host)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && !host && (prop->location.id < 0 || prop->location.id >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS && prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		r = CUDA_ERROR_NOT_SUPPORTED; // fabric handles, say
	if (r == CUDA_SUCCESS && !h)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS && !held_open())
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS && host)
		r = (h->fd = memfd_create(HOST_NAME, MFD_CLOEXEC)) < 0 || ftruncate(h->fd, bytes) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
	else if (r == CUDA_SUCCESS)
		r = directory_create(&devices[prop->location.id], bytes, name, &h->fd);
	if (r == CUDA_SUCCESS && pwrite(h->fd, "left", 4, bytes - bytes / 4) != 4) // new memory has what others have left there
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS) {
		h->bytes = bytes;
		h->device = h->location = host ? 0 : prop->location.id;
		h->host = host;
		h->prop = *prop;
		*handle = value_of(h);
	}
	return leave(r);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult r = order_of("cuMemRelease", handle);
	struct handle *h;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_of(handle);
	if (r == CUDA_SUCCESS && (!h || h->released))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && h->retained) {
		h->retained--;
	} else if (r == CUDA_SUCCESS) {
		h->released = 1;
		let_go(h);
	}
	return leave(r);
}

char *reserve(void *at, size_t bytes, int flags)
{
	return mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
	CUresult r = orders_own("cuMemAddressReserve");
	struct reservation *v = reservations;
	char *p, *start;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	while (v < reservations + MOST && v->address)
		v++;
	if (alignment < GRANULARITY)
		alignment = GRANULARITY;
	if (r == CUDA_SUCCESS && (!bytes || bytes % GRANULARITY || flags || alignment & (alignment - 1)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && v == reservations + MOST)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r != CUDA_SUCCESS)
		return leave(r);
	p = reserve((void *)wanted, bytes + alignment, 0);
	if (p == MAP_FAILED)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	start = (char *)(((uintptr_t)p + alignment - 1) & ~(alignment - 1));
	if (start > p)
		munmap(p, start - p);
	munmap(start + bytes, p + alignment - start);
	*v = (struct reservation){start, bytes};
	*pointer = (CUdeviceptr)start;
	return leave(r);
}

struct mapping *inside(CUdeviceptr pointer, size_t bytes)
{
	for (struct mapping *m = mappings; m < mappings + MOST; m++)
		if (m->address && (CUdeviceptr)m->address < pointer + bytes && pointer < (CUdeviceptr)m->address + m->bytes)
			return m;
	return NULL;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
	CUresult r = orders_own("cuMemAddressFree");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	for (struct reservation *v = reservations; r == CUDA_SUCCESS; v++) {
		if (v == reservations + MOST)
			return leave(CUDA_ERROR_INVALID_VALUE);
		if ((CUdeviceptr)v->address != pointer || v->bytes != bytes)
			continue;
		if (inside(pointer, bytes))
			return leave(CUDA_ERROR_INVALID_VALUE);
		munmap(v->address, v->bytes);
		v->address = NULL;
		break;
	}
	return leave(r);
}

int virtual_range(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes)
{
	for (struct reservation *v = reservations; v < reservations + MOST; v++)
		if (v->address && pointer - (CUdeviceptr)v->address < v->bytes) {
			*base = (CUdeviceptr)v->address;
			*bytes = v->bytes;
			return 1;
		}
	return 0;
}

// full says whether mappings without a gap fill a range, from its first byte to its last.
static int full(CUdeviceptr pointer, size_t bytes)
{
	for (CUdeviceptr at = pointer; at < pointer + bytes;) {
		struct mapping *m = inside(at, 1);

		if (!m || (CUdeviceptr)m->address != at || m->bytes > pointer + bytes - at)
			return 0;
		at += m->bytes;
	}
	return bytes != 0;
}

static int reserved(CUdeviceptr pointer, size_t bytes)
{
	for (struct reservation *v = reservations; v < reservations + MOST; v++)
		if (v->address && pointer >= (CUdeviceptr)v->address && bytes <= v->bytes && pointer - (CUdeviceptr)v->address <= v->bytes - bytes)
			return 1;
	return 0;
}

// A host cannot touch memory of a device. So it is nowhere that the program knows, and what the program maps at the same addresses is beside it. Memory of the host is at its addresses. By PROT_EXEC NVML distinguishes
// memory of others from what the process has on that device.
CUresult place_make(struct mapping *m)
{
	const struct handle *h = m->handle;
	int apart = h->imported && !h->host && !contexts_on(h->location);

	if (h->team)
		return CUDA_SUCCESS;
	m->place = mmap(h->host ? m->address : NULL, m->bytes, PROT_READ | PROT_WRITE | (apart ? PROT_EXEC : 0), MAP_SHARED | (h->host ? MAP_FIXED : 0), h->fd, 0);
	if (m->place == MAP_FAILED)
		m->place = NULL;
	return m->place ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

void place_drop(struct mapping *m)
{
	if (m->place && m->place == m->address)
		reserve(m->address, m->bytes, MAP_FIXED);
	else if (m->place)
		munmap(m->place, m->bytes);
	m->place = NULL;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult r = order_of("cuMemMap", handle);
	struct mapping *m = mappings;
	struct handle *h;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	r = team_wait(handle, r);
	h = handle_of(handle);
	while (m < mappings + MOST && m->address)
		m++;
	if (r == CUDA_SUCCESS && (!h || !bytes || bytes % GRANULARITY || offset || bytes > h->bytes || flags || !reserved(pointer, bytes)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && inside(pointer, bytes))
		r = CUDA_ERROR_ALREADY_MAPPED;
	if (r == CUDA_SUCCESS && m == mappings + MOST)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS) {
		*m = (struct mapping){.address = (char *)pointer, .bytes = bytes, .handle = h, .marks = marks_new()};
		r = place_make(m);
		h->mapped += r == CUDA_SUCCESS;
		if (r != CUDA_SUCCESS)
			m->address = NULL;
	}
	return leave(r);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
	CUresult r = order_at("cuMemUnmap", pointer);
	struct mapping *m;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && !full(pointer, bytes))
		r = CUDA_ERROR_INVALID_VALUE;
	while (r == CUDA_SUCCESS && (m = inside(pointer, bytes))) {
		place_drop(m);
		m->address = NULL;
		m->handle->mapped--;
		let_go(m->handle);
	}
	return leave(r);
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
	CUresult r = order_at("cuMemSetAccess", pointer);

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
		if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && (access[i].location.id < 0 || access[i].location.id >= devices_count))
			r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS && (!count || !full(pointer, bytes)))
		r = CUDA_ERROR_INVALID_VALUE;
	for (struct mapping *m = mappings; r == CUDA_SUCCESS && m < mappings + MOST; m++)
		for (size_t i = 0; m->address && (CUdeviceptr)m->address - pointer < bytes && i < count; i++)
			if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
				m->access[access[i].location.id] = access[i].flags;
	return leave(r);
}

// cuMemGetAccess is for memory of cuMemAlloc, too: its own device has all access.
CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
	CUresult r = enter();
	struct mapping *m = r == CUDA_SUCCESS ? inside(pointer, 1) : NULL;
	CUcontext context;
	CUdeviceptr base;
	size_t bytes;
	int device;

	if (r == CUDA_SUCCESS && (location->id < 0 || location->id >= devices_count || (!m && !memory_find(pointer, &base, &bytes, &context, &device))))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*flags = m ? m->access[location->id] : location->id == device ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
	return leave(r);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult r = order_at("cuMemRetainAllocationHandle", (CUdeviceptr)address);
	struct mapping *m;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	m = r == CUDA_SUCCESS ? inside((CUdeviceptr)address, 1) : NULL;
	if (r == CUDA_SUCCESS && !m)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS) {
		if (m->handle->released)
			m->handle->released = 0;
		else
			m->handle->retained++;
		*handle = value_of(m->handle);
	}
	return leave(r);
}

CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
	CUresult r = order_of("cuMemExportToShareableHandle", handle);
	struct handle *h;
	int fd;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_of(handle);
	// As the real driver: what was imported cannot be exported.
	if (r == CUDA_SUCCESS && (!h || h->imported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(h->prop.requestedHandleTypes & type) || flags))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS) {
		fd = h->team ? team_again(h->fd) : directory_again(h->fd);
		if (fd < 0)
			r = CUDA_ERROR_OPERATING_SYSTEM;
		else
			*(int *)shared = fd;
	}
	return leave(r);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	CUresult r = orders_own("cuMemGetAllocationPropertiesFromHandle");
	struct handle *h;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_of(handle);
	if (r == CUDA_SUCCESS && (!h || h->team))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS) {
		*prop = h->prop;
		if (!h->host)
			prop->location.id = h->location;
	}
	return leave(r);
}

// taken_for is the device that the driver takes one for when it imports memory on it, or -1: the one that had its number at first.
static int taken_for(int device)
{
	int number = directory_number(&devices[device]);

	if (number < 0)
		return device;
	for (int d = 0; d < devices_count; d++)
		if (devices[d].number == number)
			return d;
	return -1;
}

// is_host is true for a descriptor of memory of the host.
static int is_host(int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	return strstr(path, "/memfd:" HOST_NAME) != NULL;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type)
{
	int fd = (intptr_t)shared, host = is_host(fd), team = team_is(fd), device = host || team ? 0 : directory_device(devices, devices_count, fd);
	CUresult r = orders_on("cuMemImportFromShareableHandle", device < 0 ? NULL : &devices[device].uuid);
	struct handle *h;
	int location = -1;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_new();
	if (r == CUDA_SUCCESS && (device < 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS) {
		location = host || team ? 0 : taken_for(device);
		r = location < 0 ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
	}
	if (r == CUDA_SUCCESS && !h)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS && !held_open())
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS && team) {
		r = team_import(h, fd);
	} else if (r == CUDA_SUCCESS) {
		struct stat st;
		int own = directory_again(fd);

		if (own < 0 || fstat(own, &st))
			return leave(CUDA_ERROR_OPERATING_SYSTEM);
		*h = (struct handle){
			.bytes = st.st_size,
			.device = device,
			.location = location,
			.host = host,
			.prop = {CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, {host ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE, location}, 0, {0}},
			.fd = own,
			.imported = 1,
		};
	}
	if (r == CUDA_SUCCESS)
		*handle = value_of(h);
	return leave(r);
}
