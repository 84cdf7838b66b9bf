// The part of CUDA's driver API that the fake driver has. Names, values and types are those of NVIDIA's cuda.h.
#ifndef FAKECUDA_CUDA_H
#define FAKECUDA_CUDA_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef struct fake_context *CUcontext;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_INVALID_VALUE = 1,
	CUDA_ERROR_OUT_OF_MEMORY = 2,
	CUDA_ERROR_NOT_INITIALIZED = 3,
	CUDA_ERROR_NO_DEVICE = 100,
	CUDA_ERROR_INVALID_DEVICE = 101,
	CUDA_ERROR_INVALID_CONTEXT = 201,
	CUDA_ERROR_OPERATING_SYSTEM = 304,
	CUDA_ERROR_ILLEGAL_STATE = 401,
	CUDA_ERROR_NOT_READY = 600,
	CUDA_ERROR_NOT_SUPPORTED = 801,
	CUDA_ERROR_SYSTEM_NOT_READY = 802,
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

#define FAKE __attribute__((visibility("default")))

FAKE CUresult cuInit(unsigned flags);
FAKE CUresult cuDriverGetVersion(int *version);
FAKE CUresult cuGetErrorName(CUresult code, const char **name);

FAKE CUresult cuDeviceGetCount(int *count);
FAKE CUresult cuDeviceGet(CUdevice *device, int ordinal);
FAKE CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
FAKE CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

FAKE CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);
FAKE CUresult cuCtxSetCurrent(CUcontext context);
FAKE CUresult cuCtxSynchronize(void);
FAKE CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags);

FAKE CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
FAKE CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned flags);
FAKE CUresult cuMemFree_v2(CUdeviceptr pointer);
FAKE CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes);
FAKE CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);

// fakeLaunch is the only one that CUDA does not have: work that keeps the devices busy for so long.
FAKE CUresult fakeLaunch(unsigned milliseconds);

FAKE CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state);
FAKE CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args);
FAKE CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args);
FAKE CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args);
FAKE CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args);

#endif
