// cuGetProcAddress: functions by the names that the headers give them, and the version of CUDA that the program was made with.
#include "cuda.h"

#include <string.h>

// since is when the name began to mean this function; the last one that is old enough counts.
static const struct { const char *name; int since; void *function; } functions[] = {
#define SINCE(name, since, function) {#name, since, (void *)(function)}
#define ALWAYS(name) {#name, 0, (void *)(name)}
	ALWAYS(cuInit),
	ALWAYS(cuDriverGetVersion),
	ALWAYS(cuGetErrorName),
	ALWAYS(cuDeviceGetCount),
	ALWAYS(cuDeviceGet),
	ALWAYS(cuDeviceGetUuid),
	ALWAYS(cuDeviceGetAttribute),
	ALWAYS(cuDeviceCanAccessPeer),
	SINCE(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
	ALWAYS(cuDevicePrimaryCtxRetain),
	SINCE(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2),
	SINCE(cuDevicePrimaryCtxSetFlags, 11000, cuDevicePrimaryCtxSetFlags_v2),
	SINCE(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2),
	ALWAYS(cuDevicePrimaryCtxGetState),
	SINCE(cuCtxCreate, 3020, cuCtxCreate_v2),
	SINCE(cuCtxDestroy, 4000, cuCtxDestroy_v2),
	ALWAYS(cuCtxSetCurrent),
	ALWAYS(cuCtxGetCurrent),
	SINCE(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
	SINCE(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
	ALWAYS(cuCtxGetDevice),
	ALWAYS(cuCtxSynchronize),
	ALWAYS(cuCtxGetLimit),
	ALWAYS(cuCtxSetLimit),
	ALWAYS(cuCtxEnablePeerAccess),
	ALWAYS(cuCtxDisablePeerAccess),
	ALWAYS(cuStreamCreate),
	ALWAYS(cuStreamSynchronize),
	ALWAYS(cuStreamQuery),
	ALWAYS(cuStreamGetCtx),
	SINCE(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2),
	ALWAYS(cuStreamEndCapture),
	ALWAYS(cuStreamIsCapturing),
	ALWAYS(cuThreadExchangeStreamCaptureMode),
	SINCE(cuStreamDestroy, 4000, cuStreamDestroy_v2),
	SINCE(cuMemGetInfo, 3020, cuMemGetInfo_v2),
	SINCE(cuMemAlloc, 3020, cuMemAlloc_v2),
	SINCE(cuMemAllocPitch, 3020, cuMemAllocPitch_v2),
	ALWAYS(cuMemAllocManaged),
	ALWAYS(cuMemAdvise),
	ALWAYS(cuMemPrefetchAsync),
	ALWAYS(cuMemRangeGetAttribute),
	ALWAYS(cuMemRangeGetAttributes),
	ALWAYS(cuStreamAttachMemAsync),
	ALWAYS(cuMemPoolCreate),
	ALWAYS(cuMemPoolDestroy),
	ALWAYS(cuMemAllocFromPoolAsync),
	ALWAYS(cuModuleLoadData),
	SINCE(cuLinkCreate, 6050, cuLinkCreate_v2),
	SINCE(cuLinkAddData, 6050, cuLinkAddData_v2),
	ALWAYS(cuLinkComplete),
	ALWAYS(cuLinkDestroy),
	ALWAYS(cuModuleGetFunction),
	SINCE(cuModuleGetGlobal, 3020, cuModuleGetGlobal_v2),
	ALWAYS(cuModuleUnload),
	SINCE(cuMemFree, 3020, cuMemFree_v2),
	ALWAYS(cuMemFreeAsync),
	SINCE(cuMemGetAddressRange, 3020, cuMemGetAddressRange_v2),
	ALWAYS(cuPointerGetAttribute),
	ALWAYS(cuPointerGetAttributes),
	ALWAYS(cuPointerSetAttribute),
	ALWAYS(cuIpcGetMemHandle),
	SINCE(cuIpcOpenMemHandle, 11000, cuIpcOpenMemHandle_v2),
	ALWAYS(cuIpcCloseMemHandle),
	ALWAYS(cuMulticastGetGranularity),
	ALWAYS(cuMulticastCreate),
	ALWAYS(cuMulticastAddDevice),
	ALWAYS(cuMulticastBindMem),
	SINCE(cuMulticastBindMem, 13010, cuMulticastBindMem_v2),
	ALWAYS(cuMulticastBindAddr),
	SINCE(cuMulticastBindAddr, 13010, cuMulticastBindAddr_v2),
	ALWAYS(cuMulticastUnbind),
	SINCE(cuMemHostRegister, 6050, cuMemHostRegister_v2),
	ALWAYS(cuMemHostUnregister),
	ALWAYS(cuMemGetHandleForAddressRange),
	ALWAYS(cuMemHostGetFlags),
	SINCE(cuMemHostGetDevicePointer, 3020, cuMemHostGetDevicePointer_v2),
	SINCE(cuMemcpyHtoD, 3020, cuMemcpyHtoD_v2),
	SINCE(cuMemcpyDtoH, 3020, cuMemcpyDtoH_v2),
	SINCE(cuMemcpyDtoD, 3020, cuMemcpyDtoD_v2),
	SINCE(cuMemcpyHtoDAsync, 3020, cuMemcpyHtoDAsync_v2),
	SINCE(cuMemcpyDtoHAsync, 3020, cuMemcpyDtoHAsync_v2),
	SINCE(cuMemcpyDtoDAsync, 3020, cuMemcpyDtoDAsync_v2),
	SINCE(cuMemsetD8, 3020, cuMemsetD8_v2),
	ALWAYS(cuMemsetD8Async),
	ALWAYS(cuMemGetAllocationGranularity),
	ALWAYS(cuMemCreate),
	ALWAYS(cuMemRelease),
	ALWAYS(cuMemAddressReserve),
	ALWAYS(cuMemAddressFree),
	ALWAYS(cuMemMap),
	ALWAYS(cuMemUnmap),
	ALWAYS(cuMemSetAccess),
	ALWAYS(cuMemGetAccess),
	ALWAYS(cuMemRetainAllocationHandle),
	ALWAYS(cuMemExportToShareableHandle),
	ALWAYS(cuMemImportFromShareableHandle),
	SINCE(cuMemGetAllocationPropertiesFromHandle, 10020, cuMemGetAllocationPropertiesFromHandle),
	SINCE(cuGetProcAddress, 11030, cuGetProcAddress),
	SINCE(cuGetProcAddress, 12000, cuGetProcAddress_v2),
	ALWAYS(cuLaunchKernel),
	ALWAYS(cuLaunchHostFunc),
};

CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	int known = 0;

	(void)flags;
	*function = NULL;
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		if (strcmp(functions[i].name, name))
			continue;
		known = 1;
		if (version >= functions[i].since)
			*function = functions[i].function;
	}
	if (status)
		*status = *function ? 0 : known ? 2 : 1; // CUdriverProcAddressQueryResult
	return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
