// Memory with handles of fakeapp: made, mapped, held and let go of as programs do.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)2 << 20)
#define CHUNKS 32

static struct mapped {
	int kind, types, device, fd;
	CUdeviceptr address, second, third; // addresses are reserved twice as large as is mapped
	size_t bytes, count;                // of all; handles
	CUmemGenericAllocationHandle handles[CHUNKS];
} blocks[MAX_DEVICES][MAX_BLOCKS];

static const char *const kinds[] = {[PLAIN] = "plain", [WHOLE] = "whole", [CHUNKED] = "chunks", [RELEASED] = "released", [RETAINED] = "retained", [HELD] = "held", [TWICE] = "twice",
	[EXPORTED] = "exported", [BLANK] = "blank"};

int mapped_kind(const char *text)
{
	for (int k = 0; k < (int)(sizeof(kinds) / sizeof(*kinds)); k++)
		if (!strcmp(kinds[k], text))
			return k;
	return -1;
}

static CUresult give_access(CUdeviceptr at, size_t bytes, int device, int flags)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};

	return cuda.cuMemSetAccess(at, bytes, &access, 1);
}

static void reserve(CUdeviceptr *at, size_t bytes) { must("cuMemAddressReserve", cuda.cuMemAddressReserve(at, 2 * bytes, 0, 0, 0)); }

// map_chunks maps the last chunk first, and gives access to all by one call.
static void map_chunks(struct mapped *m, const CUmemAllocationProp *prop)
{
	m->count = m->bytes / CHUNK;
	for (size_t i = m->count; i-- > 0;) {
		must("cuMemCreate", cuda.cuMemCreate(&m->handles[i], CHUNK, prop, 0));
		must("cuMemMap", cuda.cuMemMap(m->address + i * CHUNK, CHUNK, 0, m->handles[i], 0));
	}
	must("cuMemSetAccess", give_access(m->address, m->bytes, m->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

static void map(struct mapped *m)
{
	must("cuMemMap", cuda.cuMemMap(m->address, m->bytes, 0, m->handles[0], 0));
	must("cuMemSetAccess", give_access(m->address, m->bytes, m->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
}

CUdeviceptr mapped_make(int device, int block, int ordinal, size_t bytes)
{
	struct mapped *m = &blocks[device][block];
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, ordinal}};

	*m = (struct mapped){.kind = options.kind[block], .device = ordinal, .bytes = bytes, .count = 1, .fd = -1};
	m->types = m->kind == WHOLE || m->kind == EXPORTED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0;
	prop.requestedHandleTypes = m->types;
	reserve(&m->address, bytes);
	if (m->kind == CHUNKED) {
		map_chunks(m, &prop);
		return m->address;
	}
	must("cuMemCreate", cuda.cuMemCreate(&m->handles[0], bytes, &prop, 0));
	if (m->kind == HELD)
		return m->address;
	map(m);
	if (m->kind == RELEASED || m->kind == RETAINED)
		must("cuMemRelease", cuda.cuMemRelease(m->handles[0]));
	if (m->kind == RETAINED)
		must("cuMemRetainAllocationHandle", cuda.cuMemRetainAllocationHandle(&m->handles[0], (void *)(m->address + bytes / 2)));
	if (m->kind == TWICE) {
		reserve(&m->second, bytes);
		reserve(&m->third, bytes);
		must("cuMemMap", cuda.cuMemMap(m->second, bytes, 0, m->handles[0], 0));
		must("cuMemMap", cuda.cuMemMap(m->third, bytes / 2, 0, m->handles[0], 0));
		must("cuMemSetAccess", give_access(m->second, bytes, ordinal, CU_MEM_ACCESS_FLAGS_PROT_READ));
	}
	if (m->kind == EXPORTED)
		must("cuMemExportToShareableHandle", cuda.cuMemExportToShareableHandle(&m->fd, m->handles[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	return m->address;
}

CUresult mapped_export(unsigned block)
{
	struct mapped *m = &blocks[0][block % MAX_BLOCKS];

	return cuda.cuMemExportToShareableHandle(&m->fd, m->handles[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

void mapped_drop(int device, int block)
{
	struct mapped *m = &blocks[device][block];

	if (m->kind != HELD)
		must("cuMemUnmap", cuda.cuMemUnmap(m->address, m->bytes));
	if (m->second) {
		must("cuMemUnmap", cuda.cuMemUnmap(m->second, m->bytes));
		must("cuMemUnmap", cuda.cuMemUnmap(m->third, m->bytes / 2));
		must("cuMemAddressFree", cuda.cuMemAddressFree(m->second, 2 * m->bytes));
		must("cuMemAddressFree", cuda.cuMemAddressFree(m->third, 2 * m->bytes));
	}
	must("cuMemAddressFree", cuda.cuMemAddressFree(m->address, 2 * m->bytes));
	for (size_t i = 0; i < m->count && m->kind != RELEASED; i++)
		must("cuMemRelease", cuda.cuMemRelease(m->handles[i]));
	if (m->fd >= 0)
		close(m->fd);
	m->kind = PLAIN;
}

void mapped_begin(int device, int block)
{
	if (blocks[device][block].kind == HELD)
		map(&blocks[device][block]);
}

void mapped_end(int device, int block)
{
	struct mapped *m = &blocks[device][block];

	if (m->kind == HELD)
		must("cuMemUnmap", cuda.cuMemUnmap(m->address, m->bytes));
}

// same compares what is at two addresses.
static int same(CUdeviceptr a, CUdeviceptr b, size_t bytes)
{
	static char one[1 << 16], other[1 << 16];

	for (size_t at = 0; at < bytes; at += sizeof(one)) {
		must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(one, a + at, sizeof(one)));
		must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(other, b + at, sizeof(other)));
		if (memcmp(one, other, sizeof(one)))
			return 0;
	}
	return 1;
}

// has_access is true where a device has this access to what is mapped.
static int has_access(const struct mapped *m, CUdeviceptr at, unsigned long long want)
{
	CUmemLocation location = {CU_MEM_LOCATION_TYPE_DEVICE, m->device};
	unsigned long long flags = 99;

	must("cuMemGetAccess", cuda.cuMemGetAccess(&flags, &location, at));
	return flags == want;
}

// check_handle is for what can be asked about a handle.
static int check_handle(const struct mapped *m, size_t i, size_t bytes)
{
	CUmemGenericAllocationHandle retained = 0;
	CUdeviceptr base = 0, at = m->address + i * bytes, start = 0;
	CUmemAllocationProp prop = {0};
	size_t n = 0, size = 0;
	uint64_t types = 99;
	int fd;

	must("cuMemGetAddressRange", cuda.cuMemGetAddressRange_v2(&base, &n, at + bytes - 1));
	must("cuPointerGetAttribute", cuda.cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, at + bytes - 1));
	must("cuPointerGetAttribute", cuda.cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, at + bytes - 1));
	must("cuPointerGetAttribute", cuda.cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, at + bytes - 1));
	must("cuMemRetainAllocationHandle", cuda.cuMemRetainAllocationHandle(&retained, (void *)(at + bytes / 2)));
	must("cuMemGetAllocationPropertiesFromHandle", cuda.cuMemGetAllocationPropertiesFromHandle(&prop, retained));
	if (!m->types && cuda.cuMemExportToShareableHandle(&fd, retained, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_ERROR_INVALID_VALUE)
		return -2;
	must("cuMemRelease", cuda.cuMemRelease(retained));
	// Released, and not retained again, it is no handle any more.
	if (m->kind == RELEASED ? cuda.cuMemRelease(retained) != CUDA_ERROR_INVALID_VALUE : retained != m->handles[i])
		return -2;
	return base != at || n != bytes || start != at || size != bytes || types != (uint64_t)m->types || prop.requestedHandleTypes != m->types || prop.location.id != m->device ? -2 : 0;
}

int mapped_check(int device, int block)
{
	const struct mapped *m = &blocks[device][block];
	size_t bytes = m->bytes / m->count;
	int r = 0;

	for (size_t i = 0; i < m->count && !r; i++)
		r = check_handle(m, i, bytes);
	// What the driver refuses.
	if (cuda.cuMemUnmap(m->address, m->bytes + CHUNK) != CUDA_ERROR_INVALID_VALUE || cuda.cuMemUnmap(m->address, bytes / 2) != CUDA_ERROR_INVALID_VALUE ||
	    give_access(m->address, m->bytes - bytes / 2, m->device, 1) != CUDA_ERROR_INVALID_VALUE || cuda.cuMemAddressFree(m->address, 2 * m->bytes) != CUDA_ERROR_INVALID_VALUE ||
	    cuda.cuMemMap(m->address + m->bytes, CHUNK, CHUNK, m->handles[0], 0) != CUDA_ERROR_INVALID_VALUE ||
	    cuda.cuMemMap(m->address, m->bytes, 0, 0, 0) != CUDA_ERROR_INVALID_VALUE || !has_access(m, m->address, CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
		return -2;
	if (m->second && (!has_access(m, m->second, CU_MEM_ACCESS_FLAGS_PROT_READ) || !has_access(m, m->third, 0) || !same(m->address, m->second, m->bytes)))
		return -2;
	return r;
}
