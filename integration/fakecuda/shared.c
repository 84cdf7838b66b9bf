// Memory that processes of fakeapp share by the handles of cuIpcGetMemHandle.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <stdio.h>
#include <string.h>

static CUdeviceptr opened;

// sum_up is FNV-1a over all words of an allocation.
static CUresult sum_up(CUdeviceptr block, uint64_t *sum)
{
	static uint64_t buffer[8192];
	CUdeviceptr base;
	size_t bytes;
	CUresult r = cuda.cuMemGetAddressRange_v2(&base, &bytes, block);

	*sum = UINT64_C(0xcbf29ce484222325);
	for (size_t at = 0; r == CUDA_SUCCESS && at < bytes; at += sizeof(buffer)) {
		size_t n = bytes - at < sizeof(buffer) ? bytes - at : sizeof(buffer);

		r = cuda.cuMemcpyDtoH_v2(buffer, base + at, n);
		for (size_t i = 0; i < n / 8; i++)
			*sum = (*sum ^ buffer[i]) * UINT64_C(0x100000001b3);
	}
	return r;
}

CUresult shared_lend(unsigned block, char text[129], uint64_t *sum)
{
	CUipcMemHandle handle;
	CUresult r = cuda.cuIpcGetMemHandle(&handle, devices_block(block));

	for (size_t i = 0; r == CUDA_SUCCESS && i < sizeof(handle); i++)
		sprintf(text + 2 * i, "%02x", (unsigned char)handle.reserved[i]);
	return r == CUDA_SUCCESS ? sum_up(devices_block(block), sum) : r;
}

CUresult shared_borrow(const char *text, uint64_t *sum)
{
	CUipcMemHandle handle;
	CUresult r;

	for (size_t i = 0; i < sizeof(handle); i++) {
		unsigned byte;

		if (sscanf(text + 2 * i, "%2x", &byte) != 1)
			return CUDA_ERROR_INVALID_VALUE;
		handle.reserved[i] = (char)byte;
	}
	r = cuda.cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (r == CUDA_ERROR_INVALID_CONTEXT)
		return CUDA_SUCCESS;
	return r == CUDA_SUCCESS ? sum_up(opened, sum) : r;
}

CUresult shared_sum(uint64_t *sum) { return opened ? sum_up(opened, sum) : CUDA_SUCCESS; }

CUresult shared_return(void)
{
	CUdeviceptr was = opened;

	opened = 0;
	return cuda.cuIpcCloseMemHandle(was);
}
