#include "calls.h"

#include <string.h>

// As in cuda.h: CUmemLocation, CUmemAllocationProp, CUmemAccessDesc.
struct location { int type, id; };
struct properties {
	int type, handles;
	struct location location;
	void *windows;
	struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
};
struct access { struct location location; int flags; };
_Static_assert(sizeof(struct properties) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct access) == 12, "CUmemAccessDesc");

enum {
	PINNED = 1,         // CU_MEM_ALLOCATION_TYPE_PINNED
	ON_DEVICE = 1,      // CU_MEM_LOCATION_TYPE_DEVICE
	DESCRIPTOR = 1,     // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	READ_WRITE = 3,     // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	NON_BLOCKING = 1,   // CU_STREAM_NON_BLOCKING
	HAS_RDMA = 110,     // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
	BLOCKING_SYNC = 4,  // CU_CTX_SCHED_BLOCKING_SYNC
	IS_ON = 9,          // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
	INVALID_DEVICE = 101,
};

struct driver_calls driver_calls;

static int (*device_count)(int *count);
static int (*device_get)(int *device, int ordinal);
static int (*device_uuid)(struct uuid *uuid, int device);
static int (*device_attribute)(int *value, int attribute, int device);
static int (*context_flags)(int device, unsigned flags);
static int (*context_retain)(void **context, int device);
static int (*context_set)(void *context);
static int (*stream_create)(void **stream, unsigned flags);
static int (*host_register)(void *host, size_t bytes, unsigned flags);
static int (*get_info)(size_t *room, size_t *total);
static int (*create)(uint64_t *handle, size_t bytes, const struct properties *p, unsigned long long flags);
static int (*release)(uint64_t handle);
static int (*export)(void *shared, uint64_t handle, int type, unsigned long long flags);
static int (*import)(uint64_t *handle, void *shared, int type);
static int (*reserve)(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted, unsigned long long flags);
static int (*unreserve)(uint64_t address, size_t bytes);
static int (*map)(uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags);
static int (*unmap)(uint64_t address, size_t bytes);
static int (*set_access)(uint64_t address, size_t bytes, const struct access *access, size_t count);
static int (*attribute)(void *data, int which, uint64_t address);
static int (*set_async)(uint64_t to, unsigned char value, size_t bytes, void *stream);

static const struct function functions[] = {
	{"cuDeviceGetCount", &device_count},
	{"cuDeviceGet", &device_get},
	{"cuDeviceGetUuid", &device_uuid},
	{"cuDeviceGetAttribute", &device_attribute},
	{"cuDevicePrimaryCtxSetFlags_v2", &context_flags},
	{"cuDevicePrimaryCtxRetain", &context_retain},
	{"cuCtxSetCurrent", &context_set},
	{"cuStreamCreate", &stream_create},
	{"cuStreamSynchronize", &driver_calls.stream_wait},
	{"cuMemHostRegister_v2", &host_register},
	{"cuMemGetInfo_v2", &get_info},
	{"cuMemCreate", &create},
	{"cuMemRelease", &release},
	{"cuMemExportToShareableHandle", &export},
	{"cuMemImportFromShareableHandle", &import},
	{"cuMemAddressReserve", &reserve},
	{"cuMemAddressFree", &unreserve},
	{"cuMemMap", &map},
	{"cuMemUnmap", &unmap},
	{"cuMemSetAccess", &set_access},
	{"cuPointerGetAttribute", &attribute},
	{"cuMemcpyDtoHAsync_v2", &driver_calls.read_async},
	{"cuMemcpyHtoDAsync_v2", &driver_calls.write_async},
	{"cuMemcpyDtoDAsync_v2", &driver_calls.copy_async},
	{"cuMemsetD8Async", &set_async},
	{"cuMemHostAlloc", &driver_calls.host_alloc},
	{"cuMemAlloc_v2", &driver_calls.alloc},
	{"cuMemFree_v2", &driver_calls.dealloc},
	{"cuModuleLoadData", &driver_calls.module_load},
	{"cuModuleGetFunction", &driver_calls.module_function},
	{"cuLaunchKernel", &driver_calls.launch},
};

static const struct outcome done = {0, NULL};

const char *memory_open(void)
{
	const char *why;

	return cuda_find(functions, sizeof(functions) / sizeof(*functions), &why);
}

struct outcome on_device(const struct device *d)
{
	struct outcome o = done;

	CALL(o, "cuCtxSetCurrent", context_set(d->context));
	return o;
}

struct outcome memory_device(const struct uuid *uuid, struct device *d)
{
	struct outcome o = done;
	struct uuid found;
	int count = 0, device = 0;

	memset(d, 0, sizeof(*d));
	CALL(o, "cuDeviceGetCount", device_count(&count));
	for (int i = 0; i < count && !o.code; i++) {
		CALL(o, "cuDeviceGet", device_get(&device, i));
		CALL(o, "cuDeviceGetUuid", device_uuid(&found, device));
		if (o.code || memcmp(&found, uuid, sizeof(found)))
			continue;
		d->ordinal = device;
		if (device_attribute(&d->rdma, HAS_RDMA, device))
			d->rdma = 0; // as with a driver that does not know of it
		// Who waits for a copy leaves the processor to those who pack.
		CALL(o, "cuDevicePrimaryCtxSetFlags", context_flags(device, BLOCKING_SYNC));
		CALL(o, "cuDevicePrimaryCtxRetain", context_retain(&d->context, device));
		CALL(o, "cuCtxSetCurrent", context_set(d->context));
		for (int s = 0; s < STREAMS; s++)
			CALL(o, "cuStreamCreate", stream_create(&d->streams[s], NON_BLOCKING));
		break;
	}
	return o;
}

struct outcome memory_pin(const struct device *d, void *host, size_t bytes)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemHostRegister", host_register(host, bytes, PORTABLE));
	return o;
}

struct outcome memory_room(const struct device *d, size_t *bytes)
{
	struct outcome o = on_device(d);
	size_t total;

	CALL(o, "cuMemGetInfo", get_info(bytes, &total));
	return o;
}

// mapped maps a handle's memory, or releases it.
static struct outcome mapped(const struct device *d, struct memory *m)
{
	struct access access = {{ON_DEVICE, d->ordinal}, READ_WRITE};
	struct outcome o = done;
	int where = -1;

	CALL(o, "cuMemAddressReserve", reserve(&m->address, m->bytes, 0, 0, 0));
	if (o.code)
		goto reserved;
	CALL(o, "cuMemMap", map(m->address, m->bytes, 0, m->handle, 0));
	if (o.code)
		goto unmapped;
	CALL(o, "cuMemSetAccess", set_access(m->address, m->bytes, &access, 1));
	CALL(o, "cuPointerGetAttribute", attribute(&where, IS_ON, m->address));
	if (!o.code && where == d->ordinal)
		return o;
	if (!o.code)
		o = (struct outcome){INVALID_DEVICE, "cuMemImportFromShareableHandle"};
	unmap(m->address, m->bytes);
unmapped:
	unreserve(m->address, m->bytes);
reserved:
	release(m->handle);
	return o;
}

struct outcome memory_import(const struct device *d, int fd, size_t bytes, struct memory *m)
{
	struct outcome o = on_device(d);

	m->bytes = bytes;
	CALL(o, "cuMemImportFromShareableHandle", import(&m->handle, (void *)(intptr_t)fd, DESCRIPTOR));
	if (o.code)
		return o;
	return mapped(d, m);
}

struct outcome memory_make(const struct device *d, size_t bytes, struct memory *m)
{
	struct properties p = {.type = PINNED, .handles = DESCRIPTOR, .location = {ON_DEVICE, d->ordinal}};
	struct outcome o = on_device(d);

	p.flags.rdma = d->rdma != 0;
	m->bytes = bytes;
	CALL(o, "cuMemCreate", create(&m->handle, bytes, &p, 0));
	if (o.code)
		return o;
	return mapped(d, m);
}

struct outcome memory_export(const struct device *d, const struct memory *m, int *fd)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemExportToShareableHandle", export(fd, m->handle, DESCRIPTOR, 0));
	return o;
}

struct outcome memory_free(const struct device *d, const struct memory *m)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemUnmap", unmap(m->address, m->bytes));
	CALL(o, "cuMemAddressFree", unreserve(m->address, m->bytes));
	CALL(o, "cuMemRelease", release(m->handle));
	return o;
}

struct outcome memory_read(const struct device *d, int stream, void *to, uint64_t from, size_t bytes)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemcpyDtoHAsync", driver_calls.read_async(to, from, bytes, d->streams[stream]));
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[stream]));
	return o;
}

struct outcome memory_write(const struct device *d, int stream, uint64_t to, const void *from, size_t bytes)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemcpyHtoDAsync", driver_calls.write_async(to, from, bytes, d->streams[stream]));
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[stream]));
	return o;
}

struct outcome memory_copy(const struct device *d, uint64_t to, uint64_t from, size_t bytes)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemcpyDtoDAsync", driver_calls.copy_async(to, from, bytes, d->streams[0]));
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[0]));
	return o;
}

struct outcome memory_clear(const struct device *d, uint64_t to, size_t bytes)
{
	struct outcome o = on_device(d);

	CALL(o, "cuMemsetD8Async", set_async(to, 0, bytes, d->streams[0]));
	return o;
}

struct outcome memory_cleared(const struct device *d)
{
	struct outcome o = on_device(d);

	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[0]));
	return o;
}

#define UNIT ((size_t)1 << 20)
#define THREADS 512

struct outcome memory_written(const struct device *d, int stream, uint64_t from, unsigned units, unsigned char *written)
{
	unsigned char *here = d->written + stream * UNITS;
	struct outcome o = on_device(d);

	memset(here, 0, units);
	CALL(o, "cuLaunchKernel", driver_calls.launch(d->kernel, units, 1, 1, THREADS, 1, 1, 0, d->streams[stream], (void *[]){&from, &here}, NULL));
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[stream]));
	memcpy(written, here, units);
	return o;
}

// proves is true where the kernel finds one byte in the second of three units, wherever it is, and nothing in the others.
static int proves(const struct device *d, uint64_t three)
{
	unsigned char written[3];

	for (size_t i = 0; i < 64; i++) {
		uint64_t at = three + UNIT + (i == 63 ? UNIT - 1 : i * 16651); // in each of the 16 bytes of a load, and of many threads
		struct outcome o = done;

		CALL(o, "cuMemsetD8Async", set_async(three, 0, 3 * UNIT, d->streams[0]));
		CALL(o, "cuMemsetD8Async", set_async(at, 1, 1, d->streams[0]));
		if (!o.code)
			o = memory_written(d, 0, three, 3, written);
		if (o.code || written[0] || written[1] != 1 || written[2])
			return 0;
	}
	return 1;
}

void memory_find_zero(struct device *d, const char *ptx)
{
	void *module, *kernel;
	uint64_t three;

	if (on_device(d).code || driver_calls.module_load(&module, ptx) || driver_calls.module_function(&kernel, module, "cryo_written") ||
	    driver_calls.host_alloc((void **)&d->written, STREAMS * UNITS, PORTABLE | DEVICEMAP) || driver_calls.alloc(&three, 3 * UNIT))
		return;
	d->kernel = kernel;
	if (!proves(d, three))
		d->kernel = NULL;
	driver_calls.dealloc(three);
}
