#define _GNU_SOURCE
#include "memory.h"
#include "directory.h"
#include "virtual.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct device devices[MAX_DEVICES];
int devices_count;

// An allocation is mapped at address always: a shared mapping of a file of its device, or anonymous memory after a checkpoint.
static struct allocation {
	char *address; // NULL: not used
	size_t bytes;
	int device, fd, managed;
	CUcontext context; // that it ends with
	char name[MEMORY_NAME]; // of the file
} allocations[4096];
#define ALLOCATIONS (sizeof(allocations) / sizeof(*allocations))

// ring is the io_uring that stands for the real driver's device files: CRIU refuses to dump it. It is open while there are files.
static int ring = -1;

int ring_open(void)
{
	char params[120] = {0}; // struct io_uring_params, see io_uring_setup(2)

	if (ring < 0)
		ring = syscall(SYS_io_uring_setup, 1, params);
	return ring >= 0;
}

static void ring_close(void)
{
	if (ring >= 0)
		close(ring);
	ring = -1;
}

static int compare(const void *a, const void *b)
{
	const struct device *one = a, *other = b;

	return one->minor != other->minor ? one->minor - other->minor : memcmp(&one->uuid, &other->uuid, sizeof(CUuuid));
}

CUresult devices_find(void)
{
	devices_count = directory_devices(devices, MAX_DEVICES);
	if (devices_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	for (int d = 0; d < devices_count; d++)
		devices[d].number = directory_number(&devices[d]);
	qsort(devices, devices_count, sizeof(*devices), compare);
	return CUDA_SUCCESS;
}

CUresult memory_alloc(CUcontext context, int device, size_t bytes, int managed, CUdeviceptr *pointer)
{
	struct allocation *a = allocations;
	CUresult r;

	while (a->address)
		if (++a == allocations + ALLOCATIONS)
			return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	bytes = (bytes + 4095) & ~(size_t)4095;
	if (!ring_open())
		return CUDA_ERROR_OPERATING_SYSTEM;
	r = directory_create(&devices[device], bytes, a->name, &a->fd);
	if (r != CUDA_SUCCESS)
		return r;
	a->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
	if (a->address == MAP_FAILED) {
		a->address = NULL;
		directory_remove(&devices[device], a->name, a->fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	a->bytes = bytes;
	a->device = device;
	a->managed = managed;
	a->context = context;
	*pointer = (CUdeviceptr)a->address;
	return CUDA_SUCCESS;
}

CUresult memory_free(CUdeviceptr pointer)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++) {
		if (!a->address || (CUdeviceptr)a->address != pointer)
			continue;
		munmap(a->address, a->bytes);
		directory_remove(&devices[a->device], a->name, a->fd);
		a->address = NULL;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_INVALID_VALUE;
}

void memory_free_all(CUcontext context)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++)
		if (a->address && a->context == context)
			memory_free((CUdeviceptr)a->address);
}

size_t memory_bytes(void)
{
	size_t bytes = 0;

	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++)
		bytes += a->address ? a->bytes : 0;
	return bytes;
}

int memory_find(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, CUcontext *context, int *device)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++) {
		CUdeviceptr start = (CUdeviceptr)a->address;

		if (!a->address || pointer < start || pointer - start >= a->bytes)
			continue;
		*base = start;
		*bytes = a->bytes;
		*context = a->context;
		*device = a->device;
		return 1;
	}
	return 0;
}

int memory_holds(CUdeviceptr pointer, size_t bytes)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++) {
		CUdeviceptr start = (CUdeviceptr)a->address;

		if (a->address && pointer >= start && bytes <= a->bytes && pointer - start <= a->bytes - bytes)
			return 1;
	}
	return 0;
}

int memory_is_managed(void)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++)
		if (a->address && a->managed)
			return 1;
	return 0;
}

// move copies an allocation into a new mapping and puts that in its place.
static CUresult move(struct allocation *a, int flags, int fd)
{
	char *copy = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (copy == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, a->address, a->bytes);
	if (mremap(copy, a->bytes, a->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, a->address) == MAP_FAILED) {
		munmap(copy, a->bytes);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

CUresult memory_save(void)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++) {
		CUresult r;

		if (!a->address)
			continue;
		r = move(a, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		if (r != CUDA_SUCCESS)
			return r;
		directory_remove(&devices[a->device], a->name, a->fd);
		a->fd = -1;
	}
	ring_close();
	return CUDA_SUCCESS;
}

// take sets where each device goes, known by the number it had; false unless the pairs are one to one over all of them.
static int take(const CUcheckpointGpuPair *pairs, unsigned count, struct device moved[MAX_DEVICES])
{
	memcpy(moved, devices, sizeof(devices));
	if (count == 0)
		return 1;
	if (count != (unsigned)devices_count)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		int known = 0;

		for (unsigned j = 0; j < i; j++)
			if (!memcmp(&pairs[i].oldUuid, &pairs[j].oldUuid, sizeof(CUuuid)) ||
			    !memcmp(&pairs[i].newUuid, &pairs[j].newUuid, sizeof(CUuuid)))
				return 0;
		for (int d = 0; d < devices_count; d++)
			if (!memcmp(&devices[d].uuid, &pairs[i].oldUuid, sizeof(CUuuid))) {
				moved[d].uuid = pairs[i].newUuid;
				known = 1;
			}
		if (!known)
			return 0;
	}
	return 1;
}

CUresult memory_load(const CUcheckpointGpuPair *pairs, unsigned count)
{
	static struct { char name[MEMORY_NAME]; int fd; } made[ALLOCATIONS];
	struct device moved[MAX_DEVICES];
	CUresult r = CUDA_SUCCESS;
	size_t i;

	if (!take(pairs, count, moved))
		return CUDA_ERROR_INVALID_VALUE;
	for (int d = 0; d < devices_count; d++)
		if (!directory_total(&moved[d]))
			return CUDA_ERROR_INVALID_DEVICE;
	// All files first: where one cannot be made, nothing has changed.
	for (i = 0; i < ALLOCATIONS && r == CUDA_SUCCESS; i++)
		if (allocations[i].address)
			r = directory_create(&moved[allocations[i].device], allocations[i].bytes, made[i].name, &made[i].fd);
	if (r == CUDA_SUCCESS)
		r = virtual_make(moved);
	if (r == CUDA_SUCCESS && !ring_open()) {
		r = CUDA_ERROR_OPERATING_SYSTEM;
		virtual_drop(moved);
	}
	if (r != CUDA_SUCCESS) {
		while (i-- > 0)
			if (allocations[i].address && made[i].fd >= 0)
				directory_remove(&moved[allocations[i].device], made[i].name, made[i].fd);
		return r;
	}
	for (i = 0; i < ALLOCATIONS && r == CUDA_SUCCESS; i++) {
		struct allocation *a = &allocations[i];

		if (!a->address)
			continue;
		r = move(a, MAP_SHARED, made[i].fd);
		a->fd = made[i].fd;
		memcpy(a->name, made[i].name, sizeof(a->name));
	}
	memcpy(devices, moved, sizeof(devices));
	return r == CUDA_SUCCESS ? virtual_load() : r;
}

void memory_forget(void)
{
	for (struct allocation *a = allocations; a < allocations + ALLOCATIONS; a++) {
		if (!a->address)
			continue;
		munmap(a->address, a->bytes);
		if (a->fd >= 0)
			close(a->fd);
		a->address = NULL;
	}
	ring_close();
	devices_count = 0;
}
