// Memory that processes share by handles, as the real driver does it: memory of cuMemCreate has none (1), nor has what was opened itself; the own process
// cannot open its handles (201); what is opened again in a context is the same, and is closed as often. It stays until then, also if its owner frees it.
#define _GNU_SOURCE
#include "driver.h"
#include "virtual.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	CUresult r = enter();
	CUcontext context;
	CUdeviceptr base;
	size_t bytes;
	int device;

	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && (!handle || !memory_find(pointer, &base, &bytes, &context, &device)))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = memory_lend(base, handle);
	return leave(r);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && (!pointer || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = memory_borrow(current, &handle, pointer);
	return leave(r);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	CUresult r = enter_idle();

	return leave(r == CUDA_SUCCESS ? memory_return(pointer) : r);
}
