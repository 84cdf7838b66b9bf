// Allocation, as cuMemAlloc does it and as programs see it.
#define _GNU_SOURCE
#include "able.h"
#include "capture.h"
#include "hooks.h"
#include "ipc.h"
#include "managed.h"
#include "memory.h"
#include "range.h"
#include "thread.h"
#include "virtual.h"

// LEAST is the size from which memory is worth handing over. It is also what the smallest piece takes.
#define LEAST GRANULARITY

int memory_ours(size_t bytes) { return bytes >= LEAST && thread_runs() && !unable_reason(); }

// make makes memory in the current context. It is false where the driver is to do it: for every other reason than that the library can, so that
// errors, also of memory that there is not, are the driver's own.
static int make(CUdeviceptr *pointer, size_t bytes)
{
	CUcontext context;
	struct range r;
	CUdevice device;
	CUresult made;

	if (!pointer || !memory_ours(bytes) || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context || driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
		return 0;
	if (capture_wait_begin()) {
		range_free_put_off(0);
		capture_wait_end();
	} else if (capture_permits() != CUDA_SUCCESS) {
		return 0;
	}
	made = range_make(context, device, bytes, &r);
	if (made == CUDA_ERROR_OUT_OF_MEMORY && managed_evict(device, bytes))
		made = range_make(context, device, bytes, &r);
	if (made != CUDA_SUCCESS)
		return 0;
	*pointer = r.address;
	return 1;
}

CUresult hook_cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
	return make(pointer, bytes) ? CUDA_SUCCESS : driver.cuMemAlloc_v2(pointer, bytes);
}

// PITCH is the driver's on all GPUs so far.
#define PITCH ((size_t)512)

CUresult hook_cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
	size_t row = (width + PITCH - 1) & ~(PITCH - 1), all;

	if (pitch && (element == 4 || element == 8 || element == 16) && !__builtin_mul_overflow(row, height, &all) && make(pointer, all)) {
		*pitch = row;
		return CUDA_SUCCESS;
	}
	return driver.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
}

// free_idle frees a range when its context has no work any more. Contexts may be waited for.
static CUresult free_idle(struct range *r)
{
	CUresult waited = range_wait(r->context), freed;

	// Other errors are those of work that has failed, and the memory is of no more use.
	if (waited == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || waited == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
		return waited;
	range_free_put_off(0);
	if (!table_take(r->address, r))
		return CUDA_ERROR_INVALID_VALUE; // another thread was faster
	freed = range_free(r);
	return waited == CUDA_SUCCESS ? freed : waited;
}

// put_off is for memory that is freed while a stream is being captured: what may still use it cannot be waited for. It goes with the next memory
// that is allocated or freed when nothing is captured, or when the gate is closed.
static CUresult put_off(CUdeviceptr pointer) { return table_put_off(pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

CUresult hook_cuMemFree_v2(CUdeviceptr pointer)
{
	struct range r;
	CUresult result;

	if (managed_free(pointer, &result))
		return result;
	if (!table_find(pointer, &r) || r.address != pointer)
		return driver.cuMemFree_v2(pointer);
	if (capture_wait_begin()) {
		result = free_idle(&r);
		capture_wait_end();
		return result;
	}
	result = driver.cuCtxPushCurrent_v2(r.context);
	if (result != CUDA_SUCCESS)
		return result;
	result = capture_permits();
	driver.cuCtxPopCurrent_v2(&r.context);
	return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? put_off(pointer) : result;
}

// free_on is cuMemFreeAsync, which frees memory of cuMemAlloc too. It waits, since only memory of pools can be freed later on.
static CUresult free_on(CUdeviceptr pointer, CUstream stream, CUresult (*free_async)(CUdeviceptr, CUstream), CUresult (*wait)(CUstream),
	CUresult (*capturing)(CUstream, int *))
{
	int status = CU_STREAM_CAPTURE_STATUS_NONE;
	struct range r;
	CUresult waited, freed;

	if (managed_covers(pointer, 1))
		return managed_pool_free(pointer, stream, wait);
	if (!table_find(pointer, &r) || r.address != pointer)
		return free_async(pointer, stream);
	if (!capture_wait_begin()) {
		// What is freed in a graph has to be allocated in one.
		if (capturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)
			return free_async(pointer, stream);
		return put_off(pointer);
	}
	waited = wait(stream);
	freed = free_idle(&r);
	capture_wait_end();
	return waited == CUDA_SUCCESS ? freed : waited;
}

CUresult hook_cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
	return free_on(pointer, stream, driver.cuMemFreeAsync, driver.cuStreamSynchronize, driver.cuStreamIsCapturing);
}

CUresult hook_cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream)
{
	return free_on(pointer, stream, driver.cuMemFreeAsync_ptsz, driver.cuStreamSynchronize_ptsz, driver.cuStreamIsCapturing_ptsz);
}

// find finds the allocation that a pointer is in, as cuMemAlloc's would end: with the last byte that was asked for.
static int find(CUdeviceptr pointer, struct range *r)
{
	return (table_find(pointer, r) || (borrow_covers(pointer, 1) && borrow_find(pointer, r))) && pointer - r->address < r->asked;
}

int memory_covers(CUdeviceptr pointer, size_t bytes) { return table_covers(pointer, bytes) || borrow_covers(pointer, bytes) || managed_covers(pointer, bytes); }

// NOWHERE is an address with nothing of CUDA's.
#define NOWHERE ((CUdeviceptr)1)

// known is a pointer for the driver: what is in nothing that the program has is nowhere, although something is mapped there.
static CUdeviceptr known(CUdeviceptr pointer)
{
	struct range r;

	return memory_covers(pointer, 1) && !find(pointer, &r) ? NOWHERE : pointer;
}

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
	struct allocation a;
	struct range r;

	if (managed_find(pointer, &a))
		r = (struct range){.address = a.address, .asked = a.bytes};
	else if (!find(pointer, &r) && !virtual_find(pointer, &r))
		return driver.cuMemGetAddressRange_v2(base, bytes, known(pointer));
	if (base)
		*base = r.address;
	if (bytes)
		*bytes = r.asked;
	return CUDA_SUCCESS;
}

// correct makes an attribute what it would be of memory of cuMemAlloc, or of one piece with the handles that the program has asked for.
static void correct(void *data, int attribute, const struct range *r)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_CONTEXT:
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: // all that was reserved, mapped or not
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		if (r->prop)
			return;
	}
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(char *)data &= !r->apart; break; // it is 1, however large
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = r->bytes; break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = r->address; break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID: // all of an allocation has the first piece's
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: driver.cuPointerGetAttribute(data, attribute, r->address); break;
	case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = r->context; break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = r->address; break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = r->asked; break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(char *)data = r->pieces[0].handle != 0; break; // not of what was opened by a handle
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = r->prop ? r->prop->requestedHandleTypes : 0; break;
	}
}

// of_freed makes an attribute what it would be of freed memory: the driver, asked for some at once, answers with what is reserved.
static void of_freed(void *data, int attribute)
{
	if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
		*(uint64_t *)data = 0;
}

CUresult hook_cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
	struct range r;
	CUresult result;

	if (managed_attribute(data, attribute, pointer, &result))
		return result;
	result = driver.cuPointerGetAttribute(data, attribute, known(pointer));

	if (result == CUDA_SUCCESS && (find(pointer, &r) || virtual_find(pointer, &r)))
		correct(data, attribute, &r);
	return result;
}

CUresult hook_cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr pointer)
{
	CUresult result = CUDA_SUCCESS;
	struct allocation a;
	struct range r;

	if (managed_find(pointer, &a)) {
		for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
			managed_attribute(data[i], attributes[i], pointer, &result);
		return result;
	}
	result = driver.cuPointerGetAttributes(count, attributes, data, known(pointer));

	if (result != CUDA_SUCCESS)
		return result;
	if (find(pointer, &r) || virtual_find(pointer, &r))
		for (unsigned i = 0; i < count; i++)
			correct(data[i], attributes[i], &r);
	else if (range_spare(pointer))
		for (unsigned i = 0; i < count; i++)
			of_freed(data[i], attributes[i]);
	return result;
}

// The one attribute that can be set is CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. Of memory with handles it cannot (801): calls that copy or set it end when that is done,
// which is what 1 asks for and 0 permits.
CUresult hook_cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer)
{
	CUresult result = CUDA_SUCCESS;
	struct range *r;

	if (attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS && value && managed_synchronizes(pointer, *(const unsigned *)value != 0))
		return CUDA_SUCCESS;
	table_lock();
	r = table_in(pointer);
	if (r && (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !value))
		result = CUDA_ERROR_INVALID_VALUE;
	else if (r)
		r->apart = !*(const unsigned *)value;
	table_unlock();
	return r ? result : driver.cuPointerSetAttribute(value, attribute, known(pointer));
}

// What is for memory with handles (virtual_calls.c) is no call for memory of cuMemAlloc, which has none that the program knows.
CUresult hook_cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
	return memory_covers(pointer, bytes) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemAddressFree(pointer, bytes);
}

#define DEVICEMAP 2 // CU_MEMHOSTALLOC_DEVICEMAP

// Memory of cuMemAlloc is not the host's; the driver returns success for memory with handles.
CUresult hook_cuMemHostGetFlags(unsigned *flags, void *memory)
{
	if (flags && managed_covers((uintptr_t)memory, 1)) {
		*flags = DEVICEMAP;
		return CUDA_SUCCESS;
	}
	return memory_covers((uintptr_t)memory, 1) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemHostGetFlags(flags, memory);
}

CUresult hook_cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *memory, unsigned flags)
{
	return memory_covers((uintptr_t)memory, 1) ? CUDA_ERROR_INVALID_VALUE : driver.cuMemHostGetDevicePointer_v2(pointer, memory, flags);
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags)
{
	CUresult result = driver.cuMemGetHandleForAddressRange(handle, pointer, bytes, type, flags);

	if (result == CUDA_SUCCESS)
		unable("it gives its GPU memory to other devices (cuMemGetHandleForAddressRange)");
	return result;
}
