// How the program gets at the driver: dlsym, cuGetProcAddress, or by the linker (gate.S).
#define _GNU_SOURCE
#include "interpose.h"
#include "able.h"
#include "cuda.h"
#include "gate.h"
#include "elf.h"
#include "hooks.h"
#include "managed.h"

#include <string.h>

// hooks are the functions that the library has a version of. since is the version of CUDA from which cuGetProcAddress means this one by
// the plain name; 0: always. Those of a thread's own default stream are meant only where that is asked for.
static const struct hook { const char *name, *plain; int since, own_stream, managed; void *function, **real; } hooks[] = {
#define HOOK(name, plain, since) {#name, #plain, since, 0, 0, (void *)hook_##name, (void **)&driver.name}
#define HOOK_OWN(name, plain, since) {#name, #plain, since, 1, 0, (void *)hook_##name, (void **)&driver.name}
// These are for programs whose managed memory the library makes.
#define MANAGED(name, plain, since) {#name, #plain, since, 0, 1, (void *)hook_##name, (void **)&driver.name}
#define MANAGED_OWN(name, plain, since) {#name, #plain, since, 1, 1, (void *)hook_##name, (void **)&driver.name}
	HOOK(cuInit, cuInit, 0),
	HOOK(cuGetProcAddress, cuGetProcAddress, 0),
	HOOK(cuGetProcAddress_v2, cuGetProcAddress, 12000),
	HOOK(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 0),
	HOOK(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000),
	HOOK(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 0),
	HOOK(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000),
	HOOK(cuCtxCreate_v2, cuCtxCreate, 3020),
	HOOK(cuCtxCreate_v3, cuCtxCreate, 11040),
	HOOK(cuCtxCreate_v4, cuCtxCreate, 12050),
	HOOK(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 0),
	HOOK(cuCtxDestroy_v2, cuCtxDestroy, 4000),
	HOOK(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 0),
	HOOK(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess, 0),
	HOOK(cuStreamBeginCapture, cuStreamBeginCapture, 10000),
	HOOK(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010),
	HOOK_OWN(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, 10000),
	HOOK_OWN(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010),
	HOOK(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 0),
	HOOK_OWN(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 0),
	HOOK(cuStreamEndCapture, cuStreamEndCapture, 0),
	HOOK_OWN(cuStreamEndCapture_ptsz, cuStreamEndCapture, 0),
	HOOK(cuStreamDestroy, cuStreamDestroy, 0),
	HOOK(cuStreamDestroy_v2, cuStreamDestroy, 4000),
	HOOK(cuMemAlloc_v2, cuMemAlloc, 3020),
	HOOK(cuMemAllocPitch_v2, cuMemAllocPitch, 3020),
	HOOK(cuMemAllocAsync, cuMemAllocAsync, 0),
	HOOK_OWN(cuMemAllocAsync_ptsz, cuMemAllocAsync, 0),
	HOOK(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 0),
	HOOK_OWN(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 0),
	HOOK(cuMemFree_v2, cuMemFree, 3020),
	HOOK(cuMemFreeAsync, cuMemFreeAsync, 0),
	HOOK_OWN(cuMemFreeAsync_ptsz, cuMemFreeAsync, 0),
	HOOK(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020),
	HOOK(cuPointerGetAttribute, cuPointerGetAttribute, 0),
	HOOK(cuPointerGetAttributes, cuPointerGetAttributes, 0),
	HOOK(cuPointerSetAttribute, cuPointerSetAttribute, 0),
	HOOK(cuIpcGetMemHandle, cuIpcGetMemHandle, 0),
	HOOK(cuIpcOpenMemHandle, cuIpcOpenMemHandle, 0),
	HOOK(cuIpcOpenMemHandle_v2, cuIpcOpenMemHandle, 11000),
	HOOK(cuIpcCloseMemHandle, cuIpcCloseMemHandle, 0),
	HOOK(cuMemHostGetFlags, cuMemHostGetFlags, 0),
	HOOK(cuMemHostGetDevicePointer_v2, cuMemHostGetDevicePointer, 3020),
	HOOK(cuMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, 0),
	HOOK(cuMemCreate, cuMemCreate, 0),
	HOOK(cuMemRelease, cuMemRelease, 0),
	HOOK(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 0),
	HOOK(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 0),
	HOOK(cuMemPoolExportToShareableHandle, cuMemPoolExportToShareableHandle, 0),
	HOOK(cuMemPoolImportFromShareableHandle, cuMemPoolImportFromShareableHandle, 0),
	HOOK(cuImportExternalMemory, cuImportExternalMemory, 0),
	HOOK(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 0),
	HOOK(cuMemMap, cuMemMap, 0),
	HOOK(cuMemUnmap, cuMemUnmap, 0),
	HOOK(cuMemSetAccess, cuMemSetAccess, 0),
	HOOK(cuMemAddressFree, cuMemAddressFree, 0),
	HOOK(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 0),
	HOOK(cuMulticastCreate, cuMulticastCreate, 0),
	HOOK(cuMulticastAddDevice, cuMulticastAddDevice, 0),
	HOOK(cuMulticastBindMem, cuMulticastBindMem, 0),
	HOOK(cuMulticastBindMem_v2, cuMulticastBindMem, 13010),
	HOOK(cuMulticastBindAddr, cuMulticastBindAddr, 0),
	HOOK(cuMulticastBindAddr_v2, cuMulticastBindAddr, 13010),
	HOOK(cuMulticastUnbind, cuMulticastUnbind, 0),
	MANAGED(cuMemAllocManaged, cuMemAllocManaged, 0),
	MANAGED(cuMemPoolCreate, cuMemPoolCreate, 0),
	MANAGED(cuMemPoolDestroy, cuMemPoolDestroy, 0),
	MANAGED(cuMemPoolTrimTo, cuMemPoolTrimTo, 0),
	MANAGED(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 0),
	MANAGED(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 0),
	MANAGED(cuMemPoolSetAccess, cuMemPoolSetAccess, 0),
	MANAGED(cuMemPoolGetAccess, cuMemPoolGetAccess, 0),
	MANAGED(cuMemGetDefaultMemPool, cuMemGetDefaultMemPool, 0),
	MANAGED(cuMemGetMemPool, cuMemGetMemPool, 0),
	MANAGED(cuMemSetMemPool, cuMemSetMemPool, 0),
	MANAGED(cuDeviceSetMemPool, cuDeviceSetMemPool, 0),
	MANAGED(cuModuleLoadData, cuModuleLoadData, 0),
	MANAGED(cuModuleLoadDataEx, cuModuleLoadDataEx, 0),
	MANAGED(cuModuleLoadFatBinary, cuModuleLoadFatBinary, 0),
	MANAGED(cuModuleUnload, cuModuleUnload, 0),
	MANAGED(cuModuleGetGlobal_v2, cuModuleGetGlobal, 3020),
	MANAGED(cuLibraryLoadData, cuLibraryLoadData, 0),
	MANAGED(cuLibraryUnload, cuLibraryUnload, 0),
	MANAGED(cuLibraryGetGlobal, cuLibraryGetGlobal, 0),
	MANAGED(cuLibraryGetManaged, cuLibraryGetManaged, 0),
	MANAGED(cuMemAdvise, cuMemAdvise, 0),
	MANAGED(cuMemAdvise_v2, cuMemAdvise, 13000),
	MANAGED(cuMemPrefetchAsync, cuMemPrefetchAsync, 0),
	MANAGED_OWN(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync, 0),
	MANAGED(cuMemPrefetchAsync_v2, cuMemPrefetchAsync, 13000),
	MANAGED_OWN(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync, 13000),
	MANAGED(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, 12080),
	MANAGED_OWN(cuMemPrefetchBatchAsync_ptsz, cuMemPrefetchBatchAsync, 12080),
	MANAGED(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync, 12080),
	MANAGED_OWN(cuMemDiscardBatchAsync_ptsz, cuMemDiscardBatchAsync, 12080),
	MANAGED(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, 12080),
	MANAGED_OWN(cuMemDiscardAndPrefetchBatchAsync_ptsz, cuMemDiscardAndPrefetchBatchAsync, 12080),
	MANAGED(cuMemRangeGetAttribute, cuMemRangeGetAttribute, 0),
	MANAGED(cuMemRangeGetAttributes, cuMemRangeGetAttributes, 0),
	MANAGED(cuStreamAttachMemAsync, cuStreamAttachMemAsync, 0),
	MANAGED_OWN(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync, 0),
	MANAGED(cuMemcpyHtoD_v2, cuMemcpyHtoD, 3020),
	MANAGED_OWN(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD, 7000),
	MANAGED(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync, 3020),
	MANAGED_OWN(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync, 7000),
	MANAGED(cuMemcpyDtoH_v2, cuMemcpyDtoH, 3020),
	MANAGED_OWN(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH, 7000),
	MANAGED(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync, 3020),
	MANAGED_OWN(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync, 7000),
};

static int offered(const struct hook *h) { return !h->managed || managed_by_library(); }

static void *by_name(const char *name)
{
	for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++)
		if (!strcmp(hooks[i].name, name) && offered(&hooks[i]))
			return hooks[i].function;
	return NULL;
}

// by_driver is by_name for what cuGetProcAddress has found: the one that it has found, or, where that is in no symbol table, the last one that
// is old enough. Versions of cuCtxCreate differ in their arguments, and so no guess is made of which it is.
static void *by_driver(const char *name, void *real, int version, uint64_t flags)
{
	void *found = NULL;

	for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++)
		if (*hooks[i].real == real && offered(&hooks[i]))
			return hooks[i].function;
	if (!strcmp(name, "cuCtxCreate"))
		return hook_create(real);
	for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++)
		if (offered(&hooks[i]) && !strcmp(hooks[i].plain, name) && version >= hooks[i].since && (!hooks[i].own_stream || flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM))
			found = hooks[i].function;
	return found;
}

// behind gives the stub for a function of the driver. Where there are no more, its work cannot be kept out of the device's memory.
static void *behind(void *function, const char *name)
{
	void *stub = gate_for(function, name);

	if (stub)
		return stub;
	unable("the program uses more functions of the driver than there are gates");
	return function;
}

// in finds what an address is in.
struct in { void *address; int driver, own; };

static int find(const struct object *o, void *with)
{
	struct in *i = with;
	uintptr_t at = (uintptr_t)i->address;

	if (at < o->first || at >= o->end)
		return 0;
	i->driver = elf_is_driver(o);
	i->own = elf_is_own(o);
	return 1;
}

// between is for a library that does what this one does, such as one that shares GPUs: what it calls is not behind the gate.
static void between(void) { unable("another library stands between the program and the driver"); }

// interpose_skipped is for who looks for a function of the driver behind itself (RTLD_NEXT), as such libraries do: it may get the driver's own.
__attribute__((visibility("hidden"))) void interpose_skipped(void) { between(); }

void *interpose_function(const char *name)
{
	struct in i = {.address = elf_behind(name)};
	void *own;

	if (!i.address || !elf_driver(name))
		return NULL;
	elf_each(find, &i);
	own = driver_find() ? by_name(name) : NULL;
	if (!i.driver)
		between();
	return i.driver && own ? own : i.address;
}

static void *no_dlsym(void *handle, const char *name)
{
	(void)handle;
	(void)name;
	return NULL;
}

// interpose_next is the C library's dlsym, or that of another library which does as this one does.
__attribute__((visibility("hidden"))) void *(*interpose_next)(void *, const char *);

__attribute__((visibility("hidden"))) void *interpose_find_next(void)
{
	void *next = interpose_next ? (void *)interpose_next : elf_behind("dlsym");

	if (!next)
		return (void *)no_dlsym;
	interpose_next = (void *(*)(void *, const char *))next;
	return next;
}

// interpose_dlsym is dlsym for names that look like the driver's. What is found in this library is a stub; a program that looks for it among all
// libraries gets one only if the driver is there and has the function. cuGetExportTable goes through the gate as the others do, what is in its tables
// does not: they have no names. The CUDA runtime uses them; sixty hand-overs under eight threads of such a program showed nothing that passed by.
__attribute__((visibility("hidden"))) void *interpose_dlsym(void *handle, const char *name)
{
	void *(*next)(void *, const char *) = (void *(*)(void *, const char *))interpose_find_next();
	struct in i = {.address = next(handle, name)};
	void *own;

	if (!i.address)
		return NULL;
	elf_each(find, &i);
	if (i.own)
		i.address = interpose_function(name);
	else if (!i.driver && elf_driver(name))
		between();
	if (!i.driver && !i.own)
		return i.address;
	if (!i.address)
		return NULL;
	own = i.driver && driver_find() ? by_name(name) : NULL;
	return behind(own ? own : i.address, name);
}

CUresult hook_cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	CUresult r = driver.cuGetProcAddress(name, function, version, flags);
	void *own;

	if (r != CUDA_SUCCESS || !function || !*function)
		return r;
	own = by_driver(name, *function, version, flags);
	*function = behind(own ? own : *function, name);
	return r;
}

CUresult hook_cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
	CUresult r = driver.cuGetProcAddress_v2(name, function, version, flags, status);
	void *own;

	if (r != CUDA_SUCCESS || !function || !*function)
		return r;
	own = by_driver(name, *function, version, flags);
	*function = behind(own ? own : *function, name);
	return r;
}
