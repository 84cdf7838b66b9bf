// What the files of fakeapp share.
#ifndef FAKEAPP_H
#define FAKEAPP_H

#include "cuda.h"

#define MAX_DEVICES 16

// CALLS are those of the driver that fakeapp makes; calls.c says how they are bound.
#define CALLS(X) \
	X(cuInit) X(cuDeviceGetCount) X(cuDeviceGetUuid) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) \
	X(cuCtxEnablePeerAccess) X(cuMemAlloc_v2) X(cuMemAllocManaged) X(cuMemFree_v2) X(cuMemGetAddressRange_v2) \
	X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuIpcGetMemHandle) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) \
	X(cuMemsetD8_v2) X(cuLaunchKernel)

extern struct calls {
#define POINTER(name) __typeof__(name) *name;
	CALLS(POINTER)
#undef POINTER
} cuda;

// calls_bind binds the calls: "direct", as the linker does; "dlsym"; or "proc", with cuGetProcAddress.
void calls_bind(const char *how);

// storm_start starts threads that use the context; they end the program at the first error. storm_rounds is how often they have gone round.
void storm_start(int threads, CUcontext context);
unsigned long long storm_rounds(void);

__attribute__((noreturn)) void die(const char *what, int code);
void must(const char *what, CUresult r);

#endif
