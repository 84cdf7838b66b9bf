#define _GNU_SOURCE
#include "range.h"

#include <stdlib.h>

// MAX_DEVICES is more than any host has; those above get no memory from the library.
#define MAX_DEVICES 64

static uint64_t accessors[MAX_DEVICES]; // of each device: those that cuCtxEnablePeerAccess gave access to it, by bits; under the table's lock

// largest is how large a piece of a range may be: 256 MiB, and 1 GiB from 4 GiB on. A call of the driver takes nearly as long for a small piece, so a large range is
// made of few; what makes a piece the process's own takes the room of one more. The variable is for tests.
static size_t largest(size_t range_bytes)
{
	static size_t unit;
	const char *text = getenv("CRYO_GPU_PIECE_BYTES");

	if (!unit) {
		unit = text ? strtoull(text, NULL, 10) / GRANULARITY * GRANULARITY : 0;
		if (!unit)
			unit = (size_t)256 << 20;
	}
	return range_bytes / 16 >= unit ? 4 * unit : unit;
}

CUresult range_create(CUdevice device, size_t bytes, CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
	};
	int rdma = 0;

	// What cuMemAlloc gives can be reached by network cards where the device can be.
	if (driver.cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device) == CUDA_SUCCESS)
		prop.allocFlags.gpuDirectRDMACapable = rdma != 0;
	return driver.cuMemCreate(handle, bytes, &prop, 0);
}

static CUresult set_access(CUdevice device, CUdeviceptr address, size_t bytes)
{
	CUmemAccessDesc access[MAX_DEVICES];
	size_t n = 0;

	for (int d = 0; d < MAX_DEVICES; d++)
		if (d == device || accessors[device] >> d & 1)
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, d}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return driver.cuMemSetAccess(address, bytes, access, n);
}

CUresult range_map(CUdevice device, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
	CUresult r = driver.cuMemMap(address, bytes, 0, handle, 0);

	if (r != CUDA_SUCCESS)
		return r;
	r = set_access(device, address, bytes);
	if (r != CUDA_SUCCESS)
		driver.cuMemUnmap(address, bytes);
	return r;
}

// make_pieces makes and maps them. made is how many are to be undone after an error.
static CUresult make_pieces(struct range *r, unsigned *made)
{
	size_t at = 0, most = largest(r->bytes);

	for (*made = 0; *made < r->count; ++*made) {
		struct piece *p = &r->pieces[*made];
		CUresult result;

		*p = (struct piece){.bytes = r->bytes - at < most ? r->bytes - at : most};
		result = range_create(r->device, p->bytes, &p->handle);
		if (result != CUDA_SUCCESS)
			return result;
		result = range_map(r->device, r->address + at, p->bytes, p->handle);
		if (result != CUDA_SUCCESS) {
			driver.cuMemRelease(p->handle);
			return result;
		}
		at += p->bytes;
	}
	return CUDA_SUCCESS;
}

// undo unmaps and releases the first pieces, and the rest of the range.
static CUresult undo(struct range *r, unsigned made)
{
	CUresult first = CUDA_SUCCESS;
	CUdeviceptr at = r->address;

	for (unsigned i = 0; i < made; i++) {
		struct piece *p = &r->pieces[i];
		CUresult result = driver.cuMemUnmap(at, p->bytes);

		if (result == CUDA_SUCCESS)
			result = driver.cuMemRelease(p->handle);
		if (first == CUDA_SUCCESS)
			first = result;
		at += p->bytes;
	}
	driver.cuMemAddressFree(r->address, r->bytes);
	room_free(r->pieces, r->count * sizeof(*r->pieces));
	return first;
}

CUresult range_make(CUcontext context, CUdevice device, size_t asked, struct range *r)
{
	CUresult result;
	unsigned made;

	if (device >= MAX_DEVICES || asked > SIZE_MAX / 2)
		return CUDA_ERROR_NOT_SUPPORTED;
	*r = (struct range){.asked = asked, .bytes = (asked + GRANULARITY - 1) & ~(GRANULARITY - 1), .device = device, .context = context};
	r->count = (r->bytes + largest(r->bytes) - 1) / largest(r->bytes);
	r->pieces = room(r->count * sizeof(*r->pieces));
	if (!r->pieces)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = driver.cuMemAddressReserve(&r->address, r->bytes, 0, 0, 0);
	if (result != CUDA_SUCCESS) {
		room_free(r->pieces, r->count * sizeof(*r->pieces));
		return result;
	}
	result = make_pieces(r, &made);
	if (result == CUDA_SUCCESS && !table_add(r))
		result = CUDA_ERROR_OPERATING_SYSTEM;
	if (result != CUDA_SUCCESS)
		undo(r, made);
	return result;
}

CUresult range_free(struct range *r) { return undo(r, r->count); }

CUresult range_wait(CUcontext context)
{
	CUresult r = driver.cuCtxPushCurrent_v2(context);

	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuCtxSynchronize();
	driver.cuCtxPopCurrent_v2(&context);
	return r;
}

void range_free_put_off(int idle)
{
	struct range some[64];
	CUcontext waited;
	size_t n;

	do {
		for (n = 0; n < sizeof(some) / sizeof(*some) && table_take_put_off(&some[n]); n++)
			;
		// What may use them was launched before they were put off.
		waited = NULL;
		for (size_t i = 0; i < n; i++) {
			if (!idle && some[i].context != waited)
				range_wait(waited = some[i].context); // errors are those of work that has failed
			range_free(&some[i]);
		}
	} while (n == sizeof(some) / sizeof(*some));
}

CUresult range_access(CUdevice device, CUdevice other, int access)
{
	CUmemAccessDesc desc = {{CU_MEM_LOCATION_TYPE_DEVICE, other}, access ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
	CUresult first = CUDA_SUCCESS;

	if (device >= MAX_DEVICES || other >= MAX_DEVICES || device == other)
		return CUDA_SUCCESS;
	table_lock();
	if (access)
		accessors[device] |= UINT64_C(1) << other;
	else
		accessors[device] &= ~(UINT64_C(1) << other);
	for (size_t i = 0; table_at(i); i++) {
		struct range *r = table_at(i);
		CUresult result = r->device == device ? driver.cuMemSetAccess(r->address, r->bytes, &desc, 1) : CUDA_SUCCESS;

		if (first == CUDA_SUCCESS)
			first = result;
	}
	table_unlock();
	return first;
}
