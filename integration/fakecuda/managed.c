// What is asked about the driver's managed memory. Advice and prefetches have no effect here: all of it is where the host and the device reach it.
#define _GNU_SOURCE
#include "driver.h"

static CUresult of_managed(CUdeviceptr pointer, size_t bytes)
{
	CUresult r = enter();

	return leave(r == CUDA_SUCCESS && (!bytes || !memory_managed(pointer, bytes)) ? CUDA_ERROR_INVALID_VALUE : r);
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)
{
	CUresult r = of_managed(pointer, bytes);

	(void)device;
	return r == CUDA_SUCCESS && (advice < 1 || advice > 6) ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
	(void)device;
	(void)stream;
	return of_managed(pointer, bytes);
}

// cuMemRangeGetAttribute answers that no advice is known: of CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY 0, of others no place (-2).
CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr pointer, size_t bytes)
{
	CUresult r = of_managed(pointer, bytes);

	if (r != CUDA_SUCCESS || !data || size < sizeof(int))
		return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < size / sizeof(int); i++)
		((int *)data)[i] = attribute == 1 ? 0 : -2;
	return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr pointer, size_t bytes)
{
	CUresult r = of_managed(pointer, bytes);

	for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
		r = cuMemRangeGetAttribute(data[i], sizes[i], attributes[i], pointer, bytes);
	return r;
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)
{
	(void)stream;
	return flags != 1 && flags != 2 && flags != 4 ? CUDA_ERROR_INVALID_VALUE : of_managed(pointer, bytes ? bytes : 1);
}
