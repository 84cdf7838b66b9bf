// The part of CUDA's driver API that the library uses. Names, values and types are those of NVIDIA's cuda.h.
#ifndef CRYO_GPU_CUDA_H
#define CRYO_GPU_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUgraph;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { uint8_t bytes[16]; } CUuuid;
typedef struct { char reserved[64]; } CUipcMemHandle;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
};

enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_ALLOCATION_TYPE_MANAGED = 2, CU_MEM_LOCATION_TYPE_INVALID = 0, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST = 2, CU_MEM_LOCATION_TYPE_HOST_NUMA = 3, CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT = 4, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1 };
enum { CU_STREAM_CAPTURE_STATUS_NONE = 0 };
enum { CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM = 1 << 1 };
enum { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
enum { CU_LIMIT_STACK_SIZE = 0 };
enum { CU_MEMORYTYPE_DEVICE = 2 };
enum { CU_MEM_ATTACH_GLOBAL = 1, CU_MEM_ATTACH_HOST = 2, CU_MEM_ATTACH_SINGLE = 4 };
enum {
	CU_MEM_ADVISE_SET_READ_MOSTLY = 1,
	CU_MEM_ADVISE_UNSET_READ_MOSTLY,
	CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
	CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
	CU_MEM_ADVISE_SET_ACCESSED_BY,
	CU_MEM_ADVISE_UNSET_ACCESSED_BY,
};
enum { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY = 1, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
	CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID };
enum {
	CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
	CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
	CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
	CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
	CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
	CU_MEMPOOL_ATTR_USED_MEM_HIGH,
};
enum { CU_JIT_INPUT_PTX = 1, CU_JIT_INPUT_FATBINARY = 2 };
enum { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED = 110, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134 };

typedef struct { int type, id; } CUmemLocation;
typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct {
	int allocType, handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;
typedef struct { unsigned numDevices; size_t size; unsigned long long handleTypes, flags; } CUmulticastObjectProp;

enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
	CU_POINTER_ATTRIBUTE_P2P_TOKENS = 5,
	CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
	CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
	CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_MAPPED = 13,
	CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
	CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
	CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
	CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID = 20,
	CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE = 21,
};

// DRIVER lists the functions of the driver that the library calls, with their arguments.
#define DRIVER(X) \
	X(cuInit, (unsigned flags)) \
	X(cuGetProcAddress, (const char *name, void **function, int version, uint64_t flags)) \
	X(cuGetProcAddress_v2, (const char *name, void **function, int version, uint64_t flags, int *status)) \
	X(cuDeviceGetCount, (int *count)) \
	X(cuDeviceGetAttribute, (int *value, int attribute, CUdevice device)) \
	X(cuDeviceGetUuid, (CUuuid *uuid, CUdevice device)) \
	X(cuDeviceCanAccessPeer, (int *can, CUdevice device, CUdevice peer)) \
	X(cuDevicePrimaryCtxRetain, (CUcontext *context, CUdevice device)) \
	X(cuDevicePrimaryCtxRelease, (CUdevice device)) \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) \
	X(cuDevicePrimaryCtxReset, (CUdevice device)) \
	X(cuDevicePrimaryCtxReset_v2, (CUdevice device)) \
	X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active)) \
	X(cuCtxCreate_v2, (CUcontext *context, unsigned flags, CUdevice device)) \
	X(cuCtxCreate_v3, (CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)) \
	X(cuCtxCreate_v4, (CUcontext *context, void *parameters, unsigned flags, CUdevice device)) \
	X(cuCtxFromGreenCtx, (CUcontext *context, void *green)) \
	X(cuCtxDestroy_v2, (CUcontext context)) \
	X(cuCtxGetCurrent, (CUcontext *context)) \
	X(cuCtxSetCurrent, (CUcontext context)) \
	X(cuCtxPushCurrent_v2, (CUcontext context)) \
	X(cuCtxPopCurrent_v2, (CUcontext *context)) \
	X(cuCtxGetDevice, (CUdevice *device)) \
	X(cuCtxSynchronize, (void)) \
	X(cuCtxGetLimit, (size_t *bytes, int limit)) \
	X(cuCtxSetLimit, (int limit, size_t bytes)) \
	X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags)) \
	X(cuCtxDisablePeerAccess, (CUcontext peer)) \
	X(cuStreamBeginCapture, (CUstream stream)) \
	X(cuStreamBeginCapture_ptsz, (CUstream stream)) \
	X(cuStreamBeginCapture_v2, (CUstream stream, int mode)) \
	X(cuStreamBeginCapture_v2_ptsz, (CUstream stream, int mode)) \
	X(cuStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t n, int mode)) \
	X(cuStreamBeginCaptureToGraph_ptsz, (CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t n, int mode)) \
	X(cuStreamEndCapture, (CUstream stream, CUgraph *graph)) \
	X(cuStreamEndCapture_ptsz, (CUstream stream, CUgraph *graph)) \
	X(cuStreamIsCapturing, (CUstream stream, int *status)) \
	X(cuStreamIsCapturing_ptsz, (CUstream stream, int *status)) \
	X(cuStreamGetCtx, (CUstream stream, CUcontext *context)) \
	X(cuStreamSynchronize, (CUstream stream)) \
	X(cuStreamSynchronize_ptsz, (CUstream stream)) \
	X(cuStreamCreate, (CUstream *stream, unsigned flags)) \
	X(cuStreamDestroy, (CUstream stream)) \
	X(cuStreamDestroy_v2, (CUstream stream)) \
	X(cuMemAlloc_v2, (CUdeviceptr *pointer, size_t bytes)) \
	X(cuMemAllocPitch_v2, (CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)) \
	X(cuMemAllocAsync, (CUdeviceptr *pointer, size_t bytes, CUstream stream)) \
	X(cuMemAllocAsync_ptsz, (CUdeviceptr *pointer, size_t bytes, CUstream stream)) \
	X(cuMemAllocFromPoolAsync, (CUdeviceptr *pointer, size_t bytes, void *pool, CUstream stream)) \
	X(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *pointer, size_t bytes, void *pool, CUstream stream)) \
	X(cuMemFree_v2, (CUdeviceptr pointer)) \
	X(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream)) \
	X(cuMemFreeAsync_ptsz, (CUdeviceptr pointer, CUstream stream)) \
	X(cuMemGetInfo_v2, (size_t *available, size_t *total)) \
	X(cuMemGetAddressRange_v2, (CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)) \
	X(cuPointerGetAttribute, (void *data, int attribute, CUdeviceptr pointer)) \
	X(cuPointerGetAttributes, (unsigned count, int *attributes, void **data, CUdeviceptr pointer)) \
	X(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr pointer)) \
	X(cuIpcGetMemHandle, (CUipcMemHandle *handle, CUdeviceptr pointer)) \
	X(cuIpcOpenMemHandle, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)) \
	X(cuIpcOpenMemHandle_v2, (CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)) \
	X(cuIpcCloseMemHandle, (CUdeviceptr pointer)) \
	X(cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) \
	X(cuMemFreeHost, (void *memory)) \
	X(cuMemHostGetFlags, (unsigned *flags, void *memory)) \
	X(cuMemHostGetDevicePointer_v2, (CUdeviceptr *pointer, void *memory, unsigned flags)) \
	X(cuMemGetHandleForAddressRange, (void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags)) \
	X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *handle, void *address)) \
	X(cuMulticastCreate, (CUmemGenericAllocationHandle *object, const CUmulticastObjectProp *prop)) \
	X(cuMulticastAddDevice, (CUmemGenericAllocationHandle object, CUdevice device)) \
	X(cuMulticastBindMem, (CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, unsigned long long flags)) \
	X(cuMulticastBindMem_v2, (CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, \
		unsigned long long flags)) \
	X(cuMulticastBindAddr, (CUmemGenericAllocationHandle object, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)) \
	X(cuMulticastBindAddr_v2, (CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)) \
	X(cuMulticastUnbind, (CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes)) \
	X(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes)) \
	X(cuMemcpyDtoD_v2_ptds, (CUdeviceptr to, CUdeviceptr from, size_t bytes)) \
	X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpyDtoDAsync_v2_ptsz, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes)) \
	X(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t bytes)) \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
	X(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr to, const void *from, size_t bytes, CUstream stream)) \
	X(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes)) \
	X(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t bytes)) \
	X(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemcpyDtoHAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t bytes, CUstream stream)) \
	X(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t bytes)) \
	X(cuThreadExchangeStreamCaptureMode, (int *mode)) \
	X(cuModuleLoadData, (void **handle, const void *code)) \
	X(cuModuleLoadDataEx, (void **handle, const void *code, unsigned count, int *options, void **values)) \
	X(cuModuleLoadFatBinary, (void **handle, const void *code)) \
	X(cuModuleUnload, (void *handle)) \
	X(cuModuleGetGlobal_v2, (CUdeviceptr *pointer, size_t *bytes, void *handle, const char *called)) \
	X(cuLibraryLoadData, (void **handle, const void *code, int *options, void **values, unsigned count, int *of_library, void **of_library_values, unsigned of_library_count)) \
	X(cuLibraryUnload, (void *handle)) \
	X(cuLinkCreate_v2, (unsigned count, int *options, void **values, void **linker)) \
	X(cuLinkAddData_v2, (void *linker, int type, void *data, size_t bytes, const char *called, unsigned count, int *options, void **values)) \
	X(cuLinkComplete, (void *linker, void **cubin, size_t *bytes)) \
	X(cuLinkDestroy, (void *linker)) \
	X(cuLibraryGetGlobal, (CUdeviceptr *pointer, size_t *bytes, void *handle, const char *called)) \
	X(cuLibraryGetManaged, (CUdeviceptr *pointer, size_t *bytes, void *handle, const char *called)) \
	X(cuMemAllocManaged, (CUdeviceptr *pointer, size_t bytes, unsigned flags)) \
	X(cuMemAdvise, (CUdeviceptr pointer, size_t bytes, int advice, CUdevice device)) \
	X(cuMemAdvise_v2, (CUdeviceptr pointer, size_t bytes, int advice, CUmemLocation location)) \
	X(cuMemPrefetchAsync, (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)) \
	X(cuMemPrefetchAsync_ptsz, (CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)) \
	X(cuMemPrefetchAsync_v2, (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)) \
	X(cuMemPrefetchAsync_v2_ptsz, (CUdeviceptr pointer, size_t bytes, CUmemLocation location, unsigned flags, CUstream stream)) \
	X(cuMemPrefetchBatchAsync, (CUdeviceptr *pointers, size_t *bytes, size_t count, CUmemLocation *locations, size_t *first, size_t places, unsigned long long flags, CUstream stream)) \
	X(cuMemPrefetchBatchAsync_ptsz, (CUdeviceptr *pointers, size_t *bytes, size_t count, CUmemLocation *locations, size_t *first, size_t places, unsigned long long flags, CUstream stream)) \
	X(cuMemDiscardBatchAsync, (CUdeviceptr *pointers, size_t *bytes, size_t count, unsigned long long flags, CUstream stream)) \
	X(cuMemDiscardBatchAsync_ptsz, (CUdeviceptr *pointers, size_t *bytes, size_t count, unsigned long long flags, CUstream stream)) \
	X(cuMemDiscardAndPrefetchBatchAsync, (CUdeviceptr *pointers, size_t *bytes, size_t count, CUmemLocation *locations, size_t *first, size_t places, unsigned long long flags, CUstream stream)) \
	X(cuMemDiscardAndPrefetchBatchAsync_ptsz, (CUdeviceptr *pointers, size_t *bytes, size_t count, CUmemLocation *locations, size_t *first, size_t places, unsigned long long flags, CUstream stream)) \
	X(cuMemRangeGetAttribute, (void *data, size_t size, int attribute, CUdeviceptr pointer, size_t bytes)) \
	X(cuMemRangeGetAttributes, (void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr pointer, size_t bytes)) \
	X(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)) \
	X(cuStreamAttachMemAsync_ptsz, (CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags)) \
	X(cuStreamQuery, (CUstream stream)) \
	X(cuStreamQuery_ptsz, (CUstream stream)) \
	X(cuMemCreate, (CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags)) \
	X(cuMemRelease, (CUmemGenericAllocationHandle handle)) \
	X(cuMemAddressReserve, (CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)) \
	X(cuMemAddressFree, (CUdeviceptr pointer, size_t bytes)) \
	X(cuMemMap, (CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)) \
	X(cuMemUnmap, (CUdeviceptr pointer, size_t bytes)) \
	X(cuMemSetAccess, (CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)) \
	X(cuMemExportToShareableHandle, (void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)) \
	X(cuMemImportFromShareableHandle, (CUmemGenericAllocationHandle *handle, void *shared, int type)) \
	X(cuMemPoolExportToShareableHandle, (void *shared, void *pool, int type, unsigned long long flags)) \
	X(cuMemPoolImportFromShareableHandle, (void **pool, void *shared, int type, unsigned long long flags)) \
	X(cuMemPoolCreate, (void **handle, const CUmemPoolProps *properties)) \
	X(cuMemPoolDestroy, (void *handle)) \
	X(cuMemPoolTrimTo, (void *handle, size_t keep)) \
	X(cuMemPoolGetAttribute, (void *handle, int attribute, void *value)) \
	X(cuMemPoolSetAttribute, (void *handle, int attribute, void *value)) \
	X(cuMemPoolSetAccess, (void *handle, const CUmemAccessDesc *access, size_t count)) \
	X(cuMemPoolGetAccess, (int *flags, void *handle, CUmemLocation *l)) \
	X(cuMemGetDefaultMemPool, (void **handle, CUmemLocation *l, int type)) \
	X(cuMemGetMemPool, (void **handle, CUmemLocation *l, int type)) \
	X(cuMemSetMemPool, (CUmemLocation *l, int type, void *handle)) \
	X(cuDeviceSetMemPool, (CUdevice device, void *handle)) \
	X(cuImportExternalMemory, (void **memory, const void *description)) \
	X(cuMemGetAllocationPropertiesFromHandle, (CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle))

// driver has the driver's own functions. One that the driver does not have gives CUDA_ERROR_NOT_SUPPORTED.
extern struct driver {
#define X(name, arguments) CUresult (*name) arguments;
	DRIVER(X)
#undef X
} driver;

// driver_find fills driver, once the program has libcuda.so.1; it is false where it has not.
int driver_find(void);

#endif
