#define _GNU_SOURCE
#include "range.h"
#include "managed.h"
#include "precopy.h"
#include "shared.h"
#include "virtual.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CUuuid first[MAX_DEVICES];        // of each device, when the driver was initialised
static unsigned char reached[MAX_DEVICES]; // by network cards: so can be what cuMemAlloc makes there
static uint64_t accessors[MAX_DEVICES]; // of each device: those that cuCtxEnablePeerAccess gave access to it, by bits; under the table's lock

// The largest piece has 256 MiB, and 1 GiB from 4 GiB on. A call of the driver takes nearly as long for a small piece, so a large range is
// made of few; what makes a piece the process's own takes the room of one more. The variable is for tests.
size_t range_piece(size_t range_bytes)
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

CUresult range_create(const struct range *r, size_t bytes, CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, r->device},
	};

	if (r->prop) {
		prop = *r->prop;
		prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
		return driver.cuMemCreate(handle, bytes, &prop, 0);
	}
	prop.allocFlags.gpuDirectRDMACapable = reached[r->device];
	return driver.cuMemCreate(handle, bytes, &prop, 0);
}

// Most ranges have one piece. A call of the kernel for each would be a tenth of what the driver takes.
#define CHUNK 128
static pthread_mutex_t single = PTHREAD_MUTEX_INITIALIZER;
static struct spare_piece { struct spare_piece *next; } *spare_pieces; // of single ones; under single

static struct piece *pieces_new(unsigned count)
{
	struct piece *p, *chunk;

	if (count != 1)
		return room(count * sizeof(*p));
	pthread_mutex_lock(&single);
	if (!spare_pieces && (chunk = room(CHUNK * sizeof(*chunk))))
		for (int i = 0; i < CHUNK; i++) {
			struct spare_piece *spare = (struct spare_piece *)&chunk[i];

			spare->next = spare_pieces;
			spare_pieces = spare;
		}
	p = (struct piece *)spare_pieces;
	if (p)
		spare_pieces = spare_pieces->next;
	pthread_mutex_unlock(&single);
	return p;
}

static void pieces_free(struct piece *p, unsigned count)
{
	struct spare_piece *spare = (struct spare_piece *)p;

	if (count != 1) {
		room_free(p, count * sizeof(*p));
		return;
	}
	pthread_mutex_lock(&single);
	spare->next = spare_pieces;
	spare_pieces = spare;
	pthread_mutex_unlock(&single);
}

// Addresses of ranges that were freed are kept for others of the same size: the driver maps memory faster where memory was mapped before. SPARE are kept, up to SPARE_BYTES each.
#define SPARE 16
#define SPARE_BYTES ((size_t)512 << 20)
static struct { CUdeviceptr address; size_t bytes; } spare[SPARE];
static unsigned oldest; // of them
static pthread_mutex_t sparing = PTHREAD_MUTEX_INITIALIZER;

static CUresult reserve(CUdeviceptr *address, size_t bytes)
{
	*address = 0;
	pthread_mutex_lock(&sparing);
	for (int i = 0; i < SPARE && !*address; i++)
		if (spare[i].bytes == bytes) {
			*address = spare[i].address;
			spare[i].bytes = 0;
		}
	pthread_mutex_unlock(&sparing);
	return *address ? CUDA_SUCCESS : driver.cuMemAddressReserve(address, bytes, 0, 0, 0);
}

int range_spare(CUdeviceptr pointer)
{
	int found = 0;

	pthread_mutex_lock(&sparing);
	for (int i = 0; i < SPARE && !found; i++)
		found = pointer - spare[i].address < spare[i].bytes;
	pthread_mutex_unlock(&sparing);
	return found;
}

static void unreserve(CUdeviceptr address, size_t bytes)
{
	if (bytes <= SPARE_BYTES) {
		CUdeviceptr other;
		size_t others;

		pthread_mutex_lock(&sparing);
		other = spare[oldest].address;
		others = spare[oldest].bytes;
		spare[oldest].address = address;
		spare[oldest].bytes = bytes;
		oldest = (oldest + 1) % SPARE;
		pthread_mutex_unlock(&sparing);
		address = other;
		bytes = others;
	}
	if (bytes)
		driver.cuMemAddressFree(address, bytes);
}

// map maps memory, for its device and others.
static CUresult map(CUdevice device, uint64_t others, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
	CUresult r = driver.cuMemMap(address, bytes, 0, handle, 0);
	CUmemAccessDesc access[MAX_DEVICES];
	size_t n = 0;

	for (int d = 0; d < MAX_DEVICES; d++)
		if (d == device || others >> d & 1)
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, d}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuMemSetAccess(address, bytes, access, n);
	if (r != CUDA_SUCCESS)
		driver.cuMemUnmap(address, bytes);
	return r;
}

CUresult range_map(CUdevice device, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
	return map(device, accessors[device], address, bytes, handle);
}

CUresult range_put(const struct range *r, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
	uint64_t others = accessors[r->device];

	if (r->everywhere)
		others = range_everyone(r->device);
	else if (r->prop)
		others = 0;
	return map(r->device, others, address, bytes, handle);
}

// make_pieces makes and maps them. made is how many are to be undone after an error.
static CUresult make_pieces(struct range *r, unsigned *made)
{
	size_t at = 0, most = range_piece(r->bytes);

	for (*made = 0; *made < r->count; ++*made) {
		struct piece *p = &r->pieces[*made];
		CUresult result;

		*p = (struct piece){.bytes = r->bytes - at < most ? r->bytes - at : most, .own = 1, .fd = -1, .passed = -1};
		result = range_create(r, p->bytes, &p->handle);
		if (result != CUDA_SUCCESS)
			return result;
		result = range_put(r, r->address + at, p->bytes, p->handle);
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
	if (first == CUDA_SUCCESS)
		unreserve(r->address, r->bytes);
	else
		driver.cuMemAddressFree(r->address, r->bytes);
	pieces_free(r->pieces, r->count);
	return first;
}

void range_begin(void)
{
	static const CUuuid none;
	int count = 0;

	driver.cuDeviceGetCount(&count);
	for (CUdevice d = 0; d < count && d < MAX_DEVICES; d++) {
		int rdma = 0;

		if (memcmp(&first[d], &none, sizeof(none)))
			continue;
		driver.cuDeviceGetUuid(&first[d], d);
		reached[d] = driver.cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, d) == CUDA_SUCCESS && rdma;
	}
}

CUresult range_make(CUcontext context, CUdevice device, size_t asked, struct range *r)
{
	CUresult result;
	unsigned made;

	if (device >= MAX_DEVICES || asked > SIZE_MAX / 2)
		return CUDA_ERROR_NOT_SUPPORTED;
	*r = (struct range){.asked = asked, .bytes = (asked + GRANULARITY - 1) & ~(GRANULARITY - 1), .device = device, .context = context};
	r->count = (r->bytes + range_piece(r->bytes) - 1) / range_piece(r->bytes);
	r->pieces = pieces_new(r->count);
	if (!r->pieces)
		return CUDA_ERROR_OPERATING_SYSTEM;
	result = reserve(&r->address, r->bytes);
	if (result != CUDA_SUCCESS) {
		pieces_free(r->pieces, r->count);
		return result;
	}
	result = make_pieces(r, &made);
	if (result == CUDA_SUCCESS && !table_add(r))
		result = CUDA_ERROR_OPERATING_SYSTEM;
	if (result != CUDA_SUCCESS)
		undo(r, made);
	return result;
}

CUresult range_free(struct range *r)
{
	precopy_wait(r->pieces, r->count);
	for (unsigned i = 0; i < r->count; i++) {
		if (r->pieces[i].fd >= 0)
			close(r->pieces[i].fd);
		shared_forget(&r->pieces[i]);
	}
	return undo(r, r->count);
}

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

CUresult range_import(CUdevice device, int fd, CUmemGenericAllocationHandle *handle)
{
	CUmemAllocationProp prop = {0};
	CUresult r = driver.cuMemImportFromShareableHandle(handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (r != CUDA_SUCCESS)
		return r;
	if (driver.cuMemGetAllocationPropertiesFromHandle(&prop, *handle) != CUDA_SUCCESS || prop.location.id == device)
		return CUDA_SUCCESS;
	driver.cuMemRelease(*handle);
	return CUDA_ERROR_INVALID_DEVICE;
}

// mistakes tells whether the driver takes a piece for another device's when it comes by a descriptor.
static int mistakes(CUdevice device, const struct piece *p)
{
	CUmemGenericAllocationHandle handle;
	CUresult r;
	int fd;

	if (driver.cuMemExportToShareableHandle(&fd, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS)
		return 0; // which is found out when it is handed over
	r = range_import(device, fd, &handle);
	close(fd);
	if (r == CUDA_SUCCESS)
		driver.cuMemRelease(handle);
	return r == CUDA_ERROR_INVALID_DEVICE;
}

// mistaken is mistakes of a range, unless its device was looked at.
static int mistaken(const struct range *r, void *with)
{
	uint64_t *looked = with;
	CUuuid now;

	if (*looked >> r->device & 1 || !r->pieces[0].own)
		return 0;
	*looked |= UINT64_C(1) << r->device;
	// No GPU has taken the place of another where it is the one that it was.
	return driver.cuDeviceGetUuid(&now, r->device) == CUDA_SUCCESS && memcmp(&now, &first[r->device], sizeof(now)) && mistakes(r->device, &r->pieces[0]);
}

static int mistaken_unit(struct range *r, void *with) { return mistaken(r, with); }

int range_mistaken(void)
{
	uint64_t looked = 0;
	int found = 0;

	table_lock();
	for (size_t i = 0; !found && table_at(i); i++)
		found = mistaken(table_at(i), &looked);
	table_unlock();
	return found || virtual_each(mistaken, &looked) || managed_each(mistaken_unit, &looked);
}

uint64_t range_devices(void)
{
	int count = 0;

	driver.cuDeviceGetCount(&count);
	return count < MAX_DEVICES ? (UINT64_C(1) << count) - 1 : ~UINT64_C(0);
}

uint64_t range_everyone(CUdevice device)
{
	uint64_t found = UINT64_C(1) << device, all = range_devices();
	int can;

	for (CUdevice d = 0; d < MAX_DEVICES; d++)
		if (d != device && all >> d & 1 && driver.cuDeviceCanAccessPeer(&can, d, device) == CUDA_SUCCESS && can)
			found |= UINT64_C(1) << d;
	return found;
}

uint64_t range_accessors(CUdevice device) { return accessors[device] | UINT64_C(1) << device; }

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
