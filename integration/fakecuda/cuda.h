// The part of CUDA's driver API that the fake driver has. Names, values and types are those of NVIDIA's cuda.h.
#ifndef FAKECUDA_CUDA_H
#define FAKECUDA_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct fake_context *CUcontext;
typedef unsigned long long CUdeviceptr;
typedef struct fake_stream *CUstream;
typedef struct fake_function *CUfunction;
typedef struct fake_graph *CUgraph;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { char bytes[16]; } CUuuid;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
	CUDA_ERROR_INVALID_PTX = 218,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_INVALID_HANDLE = 400,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_FOUND = 500,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_ILLEGAL_ADDRESS = 700,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
	CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
	CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
	CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
	CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
	CUDA_ERROR_UNKNOWN = 999,
};

typedef enum {
	CU_PROCESS_STATE_RUNNING,
	CU_PROCESS_STATE_LOCKED,
	CU_PROCESS_STATE_CHECKPOINTED,
	CU_PROCESS_STATE_FAILED,
} CUprocessState;

typedef struct { unsigned timeoutMs, reserved0; uint64_t reserved1[7]; } CUcheckpointLockArgs;
typedef struct { uint64_t reserved[8]; } CUcheckpointCheckpointArgs;
typedef struct { CUuuid oldUuid, newUuid; } CUcheckpointGpuPair;
typedef struct {
	CUcheckpointGpuPair *gpuPairs;
	unsigned gpuPairsCount;
	char reserved[64 - sizeof(CUcheckpointGpuPair *) - sizeof(unsigned)];
} CUcheckpointRestoreArgs;
typedef struct { uint64_t reserved[8]; } CUcheckpointUnlockArgs;

enum { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75 };

// Memory with handles.
enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1, CU_MEM_LOCATION_TYPE_DEVICE = 1, CU_MEM_LOCATION_TYPE_HOST_NUMA = 3, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1, CU_MEM_HANDLE_TYPE_FABRIC = 8 };
enum { CU_MEM_ACCESS_FLAGS_PROT_NONE = 0, CU_MEM_ACCESS_FLAGS_PROT_READ = 1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3 };
typedef struct { int type, id; } CUmemLocation;
typedef struct {
	int type, requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct { unsigned char compressionType, gpuDirectRDMACapable; unsigned short usage; unsigned char reserved[4]; } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;
typedef struct { unsigned numDevices; size_t size; unsigned long long handleTypes, flags; } CUmulticastObjectProp;
typedef void *CUmemoryPool;
typedef struct {
	int allocType, handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;
typedef struct linker *CUlinkState;
typedef struct { char reserved[64]; } CUipcMemHandle;
enum { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
enum { CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1 };

enum {
	CU_POINTER_ATTRIBUTE_CONTEXT = 1,
	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
	CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
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
	CU_POINTER_ATTRIBUTE_MAPPING_SIZE = 18,
	CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR = 19,
};

typedef enum { CU_STREAM_CAPTURE_STATUS_NONE, CU_STREAM_CAPTURE_STATUS_ACTIVE, CU_STREAM_CAPTURE_STATUS_INVALIDATED } CUstreamCaptureStatus;
typedef enum { CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED } CUstreamCaptureMode;

enum { CU_LIMIT_STACK_SIZE = 0 };

#define FAKE __attribute__((visibility("default")))

FAKE CUresult cuInit(unsigned flags);
FAKE CUresult cuDriverGetVersion(int *version);
FAKE CUresult cuGetErrorName(CUresult code, const char **name);

FAKE CUresult cuDeviceGetCount(int *count);
FAKE CUresult cuDeviceGet(CUdevice *device, int ordinal);
FAKE CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
FAKE CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

FAKE CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
FAKE CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer);
FAKE CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
FAKE CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags);
FAKE CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
FAKE CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
FAKE CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active);

FAKE CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
FAKE CUresult cuCtxDestroy_v2(CUcontext context);
FAKE CUresult cuCtxSetCurrent(CUcontext context);
FAKE CUresult cuCtxGetCurrent(CUcontext *context);
FAKE CUresult cuCtxPushCurrent_v2(CUcontext context);
FAKE CUresult cuCtxPopCurrent_v2(CUcontext *context);
FAKE CUresult cuCtxGetDevice(CUdevice *device);
FAKE CUresult cuCtxSynchronize(void);
FAKE CUresult cuCtxGetLimit(size_t *bytes, int limit);
FAKE CUresult cuCtxSetLimit(int limit, size_t bytes);
FAKE CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);
FAKE CUresult cuCtxDisablePeerAccess(CUcontext peer);
FAKE CUresult cuStreamCreate(CUstream *stream, unsigned flags);
FAKE CUresult cuStreamSynchronize(CUstream stream);
FAKE CUresult cuStreamQuery(CUstream stream);
FAKE CUresult cuStreamSynchronize_ptsz(CUstream stream);
FAKE CUresult cuStreamDestroy_v2(CUstream stream);
FAKE CUresult cuStreamGetCtx(CUstream stream, CUcontext *context);
FAKE CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
FAKE CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
FAKE CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
FAKE CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
FAKE CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status);
FAKE CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status);
FAKE CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode);

// cuLaunchHostFunc calls the function at once, in the thread that it is called in.
FAKE CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data);

FAKE CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
FAKE CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
FAKE CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element);
FAKE CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
FAKE CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, int advice, CUdevice device);
FAKE CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream);
FAKE CUresult cuMemRangeGetAttribute(void *data, size_t size, int attribute, CUdeviceptr pointer, size_t bytes);
FAKE CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, int *attributes, size_t count, CUdeviceptr pointer, size_t bytes);
FAKE CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t bytes, unsigned flags);
FAKE CUresult cuMemFree_v2(CUdeviceptr pointer);
FAKE CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream);
FAKE CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream);
FAKE CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer);
FAKE CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer);
FAKE CUresult cuPointerGetAttributes(unsigned count, int *attributes, void **data, CUdeviceptr pointer);
FAKE CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer);
FAKE CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer);
FAKE CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags);
FAKE CUresult cuIpcCloseMemHandle(CUdeviceptr pointer);
FAKE CUresult cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags);
FAKE CUresult cuMemHostUnregister(void *memory);
FAKE CUresult cuMemHostGetFlags(unsigned *flags, void *memory);
FAKE CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *memory, unsigned flags);

// The asynchronous ones are done when they return.
FAKE CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
FAKE CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
FAKE CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes);
FAKE CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
FAKE CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
FAKE CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream);
FAKE CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t bytes);
FAKE CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream);

FAKE CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop, int option);
FAKE CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop, unsigned long long flags);
FAKE CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
FAKE CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags);
FAKE CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes);
FAKE CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
FAKE CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes);
FAKE CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count);
FAKE CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer);
FAKE CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address);
FAKE CUresult cuMemExportToShareableHandle(void *shared, CUmemGenericAllocationHandle handle, int type, unsigned long long flags);
FAKE CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shared, int type);
FAKE CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr pointer, size_t bytes, int type, unsigned long long flags);
FAKE CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);

FAKE CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop, int option);
FAKE CUresult cuMulticastCreate(CUmemGenericAllocationHandle *object, const CUmulticastObjectProp *prop);
FAKE CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle object, CUdevice device);
FAKE CUresult cuMulticastBindMem(CUmemGenericAllocationHandle object, size_t at, CUmemGenericAllocationHandle memory, size_t offset, size_t bytes, unsigned long long flags);
FAKE CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUmemGenericAllocationHandle memory, size_t offset, size_t bytes, unsigned long long flags);
FAKE CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle object, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags);
FAKE CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle object, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags);
FAKE CUresult cuMulticastUnbind(CUmemGenericAllocationHandle object, CUdevice device, size_t at, size_t bytes);

FAKE CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
FAKE CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

// The kernels are those of cmd/cryo-gpu-keeper, and for programs fake_add and fake_later (kernel.c).
FAKE CUresult cuModuleLoadData(void **module, const void *text);
FAKE CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *linker);
FAKE CUresult cuLinkAddData_v2(CUlinkState linker, int type, void *data, size_t bytes, const char *name, unsigned count, int *options, void **values);
FAKE CUresult cuLinkComplete(CUlinkState linker, void **cubin, size_t *bytes);
FAKE CUresult cuLinkDestroy(CUlinkState linker);
FAKE CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties);
FAKE CUresult cuMemPoolDestroy(CUmemoryPool pool);
FAKE CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);
FAKE CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value);
FAKE CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value);
FAKE CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);
FAKE CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location);
FAKE CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);
FAKE CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type);
FAKE CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool);
FAKE CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);
FAKE CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream);
FAKE CUresult cuModuleGetFunction(CUfunction *function, void *module, const char *name);
FAKE CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, void *module, const char *name);
FAKE CUresult cuModuleUnload(void *module);
FAKE CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags);
// meeting is what a kernel that meets those of other processes has for its argument, in the fake driver: how many processes, which it is, and how many each has launched, in memory that all share.
struct meeting { unsigned ranks, rank; uint64_t *launched; };
FAKE CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
	unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra);

FAKE CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
FAKE CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid);
FAKE CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
FAKE CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
FAKE CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
FAKE CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);

// fakecuda_saved is how much device memory the last checkpoint of this process has saved, bytes.
FAKE size_t fakecuda_saved(void);

#endif
