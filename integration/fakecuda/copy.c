// Allocations, and copies to and from them.
#define _GNU_SOURCE
#include "directory.h"
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <string.h>
#include <sys/mman.h>

static CUresult alloc(CUdeviceptr *pointer, size_t bytes, int managed)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && !pointer)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = streams_safe();
	if (r == CUDA_SUCCESS)
		r = memory_alloc(current, current->device, bytes, managed, pointer);
	return leave(r);
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUresult r = orders_own("cuMemGetInfo");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS) {
		struct device *d = &devices[current->device];

		if (total)
			*total = d->total;
		if (available)
			*available = d->total - directory_used(d);
	}
	return leave(r);
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	CUresult r = orders_own("cuMemAlloc");

	return r == CUDA_SUCCESS ? alloc(pointer, bytes, 0) : r;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	if (!pitch || (element != 4 && element != 8 && element != 16))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + 511) & ~(size_t)511;
	return alloc(pointer, *pitch * height, 0);
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags)
{
	(void)flags;
	return alloc(pointer, bytes, 1);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
	CUresult r = orders_own("cuMemFree");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS)
		r = streams_safe();
	leave(r);
	if (r != CUDA_SUCCESS)
		return r;
	r = enter_idle();
	return leave(r == CUDA_SUCCESS ? memory_free(pointer) : r);
}

// cuMemFreeAsync is for memory of cuMemAlloc here, as there are no pools. Into a graph goes only what was allocated in one.
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	CUresult r = enter_idle();
	int captured = 0;

	if (r == CUDA_SUCCESS)
		r = streams_take(stream, &captured);
	if (r == CUDA_SUCCESS && captured)
		r = CUDA_ERROR_INVALID_VALUE;
	return leave(r == CUDA_SUCCESS ? memory_free(pointer) : r);
}

// look finds what a pointer is in; false where it is in nothing.
static int look(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, CUcontext *context, int *device)
{
	*context = NULL; // of memory with handles
	return memory_find(pointer, base, bytes, context, device) || virtual_find(pointer, base, bytes, device);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
	CUresult r = enter();
	CUdeviceptr b;
	CUcontext c;
	size_t n;
	int d;

	if (r == CUDA_SUCCESS && !look(pointer, &b, &n, &c, &d))
		r = CUDA_ERROR_NOT_FOUND;
	if (r == CUDA_SUCCESS && base)
		*base = b;
	if (r == CUDA_SUCCESS && bytes)
		*bytes = n;
	return leave(r);
}

static struct marks *marks(CUdeviceptr pointer)
{
	struct marks *m = memory_marks(pointer);

	return m ? m : virtual_marks(pointer);
}

CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !marks(pointer)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && !memory_marks(pointer))
		r = CUDA_ERROR_NOT_SUPPORTED; // of memory with handles
	if (r == CUDA_SUCCESS)
		marks(pointer)->sync = *(const unsigned *)value != 0;
	return leave(r);
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
	CUresult r = enter();
	CUcontext context = NULL;
	CUdeviceptr base;
	size_t bytes;
	int device;

	if (r == CUDA_SUCCESS && (!data || !look(pointer, &base, &bytes, &context, &device)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return leave(r);
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = context; break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(int *)data = 2; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = pointer; break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned *)data = memory_managed(pointer, 1); break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned *)data = marks(pointer)->sync; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = context ? (bytes + GRANULARITY - 1) & ~(size_t)(GRANULARITY - 1) : bytes; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = base; break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)data = marks(pointer)->id; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = device; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(char *)data = context && !memory_opened(base); break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		if (!context)
			virtual_range(pointer, &base, &bytes);
		if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
			*(size_t *)data = bytes;
		else
			*(CUdeviceptr *)data = base;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = context ? 0 : virtual_types(pointer); break;
	default: r = CUDA_ERROR_INVALID_VALUE;
	}
	return leave(r);
}

// nowhere answers about a pointer at which there is no memory, as the real driver does in this call alone. It knows what was reserved there.
static void nowhere(void *data, int attribute, CUdeviceptr pointer)
{
	CUdeviceptr base = 0;
	size_t bytes = 0;

	virtual_range(pointer, &base, &bytes);
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned *)data = 0; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: *(char *)data = 0; break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = -2; break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr *)data = pointer; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = base; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = bytes; break;
	default: *(uint64_t *)data = 0;
	}
}

CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr pointer)
{
	CUresult r = enter();
	CUcontext context;
	CUdeviceptr base;
	size_t bytes;
	int device, found = r != CUDA_SUCCESS || look(pointer, &base, &bytes, &context, &device);

	for (unsigned i = 0; !found && i < count; i++)
		nowhere(data[i], attributes[i], pointer);
	r = leave(r);
	if (!found)
		return r;
	for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
		r = cuPointerGetAttribute(data[i], attributes[i], pointer);
	return r;
}

CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
	CUresult r = orders_own("cuMemHostRegister");

	(void)flags;
	if (r == CUDA_SUCCESS)
		r = leave(enter());
	return r == CUDA_SUCCESS && (!memory || !bytes) ? CUDA_ERROR_INVALID_VALUE : r;
}

// As with the real driver, memory with handles is the host's too. What was registered is not known here.
static CUresult of_host(CUresult r, const void *memory)
{
	CUdeviceptr base;
	size_t bytes;
	int device;

	return r == CUDA_SUCCESS && !virtual_find((CUdeviceptr)memory, &base, &bytes, &device) ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *memory)
{
	CUresult r = of_host(enter(), memory);

	if (r == CUDA_SUCCESS)
		*flags = 0;
	return leave(r);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *memory, unsigned flags)
{
	CUresult r = of_host(enter(), memory);

	if (r == CUDA_SUCCESS && flags)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*pointer = (CUdeviceptr)memory;
	return leave(r);
}

// holds says whether all of a range is device memory that can be read, or written.
static int holds(CUdeviceptr pointer, size_t bytes, int write)
{
	return memory_holds(pointer, bytes) || virtual_holds(pointer, bytes, write);
}

// The descriptor is of nothing here.
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!handle || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || !holds(pointer, bytes, 0)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && (*(int *)handle = memfd_create("fakecuda-dmabuf", MFD_CLOEXEC)) < 0)
		r = CUDA_ERROR_OPERATING_SYSTEM;
	return leave(r);
}

CUresult cuMemHostUnregister(void *memory)
{
	CUresult r = leave(enter());

	return r == CUDA_SUCCESS && !memory ? CUDA_ERROR_INVALID_VALUE : r;
}

// move copies between addresses of devices, or of the host where there is none of a device.
static void move(CUdeviceptr to_device, CUdeviceptr from_device, size_t bytes, char *to, const char *from)
{
	for (size_t done = 0, n; done < bytes; done += n) {
		char *there = to + done;
		const char *here = from + done;

		n = bytes - done;
		if (to_device)
			there = virtual_place(to_device + done, &n);
		if (from_device)
			here = virtual_place(from_device + done, &n);
		memmove(there, here, n);
	}
}

static CUresult copy(const char *call, CUstream stream, CUdeviceptr to_device, CUdeviceptr from_device, size_t bytes, void *to, const void *from)
{
	CUresult r = order_at(call, to_device ? to_device : from_device);
	int captured = 0;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter_idle();
	if (r == CUDA_SUCCESS && (!to || !from))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && ((to_device && !holds(to_device, bytes, 1)) || (from_device && !holds(from_device, bytes, 0))))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = streams_take(stream, &captured);
	if (r == CUDA_SUCCESS && !captured && !(to_device && team_copy(to_device, bytes, NULL, from)) && !(from_device && team_copy(from_device, bytes, to, NULL)))
		move(to_device, from_device, bytes, to, from);
	return leave(r);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
	return copy("cuMemcpyHtoD", NULL, to, 0, bytes, (void *)to, from);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
	return copy("cuMemcpyDtoH", NULL, 0, from, bytes, to, (const void *)from);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	return copy("cuMemcpyDtoD", NULL, to, from, bytes, (void *)to, (const void *)from);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyHtoDAsync", stream, to, 0, bytes, (void *)to, from);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyDtoHAsync", stream, 0, from, bytes, to, (const void *)from);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
	return copy("cuMemcpyDtoDAsync", stream, to, from, bytes, (void *)to, (const void *)from);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
	CUresult r = orders_own("cuMemsetD8");
	int captured = 0;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter_idle();
	if (r == CUDA_SUCCESS && (!holds(to, bytes, 1) || team_at(to)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = streams_take(stream, &captured);
	for (size_t done = 0, n = bytes; r == CUDA_SUCCESS && !captured && done < bytes; done += n, n = bytes - done) {
		char *at = virtual_place(to + done, &n);

		memset(at, value, n);
	}
	return leave(r);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes)
{
	return cuMemsetD8Async(to, value, bytes, NULL);
}
