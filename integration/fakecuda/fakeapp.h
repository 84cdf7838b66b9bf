// What the files of fakeapp share.
#ifndef FAKEAPP_H
#define FAKEAPP_H

#include "cuda.h"

#include <stddef.h>

#define MAX_DEVICES 16
#define MAX_BLOCKS 32
#define MAX_PROCESSES 64

extern struct options {
	int processes, share, share_host, multicast, fabric, casts, blocks, block[MAX_BLOCKS], kind[MAX_BLOCKS], mib, apart, kernel_ms, managed, peer, storm, captures, poll, reduce, churn, alternate, preferred, pool, quiet, watch, no_cuda, watchers, watching_children; // mib is all blocks together
	const char *socket, *bind, *nvml;
} options;

// What one process has.
extern int number, devices, first; // first: the driver's number of its first device
extern CUcontext contexts[MAX_DEVICES];
extern CUdeviceptr counter;
extern uint64_t key, ticks; // of the pattern; that counter has

// devices_start makes contexts and memory, and fills it. devices_drop takes all away and makes it anew.
void devices_start(void);
void devices_drop(void);
// devices_over and devices_ranges give 0, a CUresult, or -1 or -2 for a difference.
int devices_over(int device, int write);
int devices_ranges(int device);
CUresult devices_launch(unsigned ms);
CUresult devices_handle(void);
CUresult devices_lend(void);
CUdeviceptr devices_block(unsigned block); // of the first device; 0: there is no such one
// devices_limit sets the stack that a thread may have, in the context of a device; devices_limit_of gives it.
CUresult devices_limit(int device, size_t bytes);
size_t devices_limit_of(int device);
void devices_uuid(int device, char text[41]);

// CALLS are those of the driver that fakeapp makes; calls.c says how they are bound.
#define CALLS(X) \
	X(cuInit) X(cuDeviceGetCount) X(cuDeviceGetUuid) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuCtxGetLimit) X(cuCtxSetLimit) \
	X(cuCtxEnablePeerAccess) X(cuMemAlloc_v2) X(cuMemAllocManaged) X(cuMemPoolCreate) X(cuMemAllocFromPoolAsync) X(cuMemAdvise) X(cuMemFree_v2) X(cuMemGetAddressRange_v2) \
	X(cuPointerGetAttribute) X(cuPointerGetAttributes) X(cuMemCreate) X(cuMemRelease) X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemMap) X(cuMemUnmap) X(cuMemSetAccess) X(cuMemGetAccess) \
	X(cuMemRetainAllocationHandle) X(cuMemExportToShareableHandle) X(cuMemImportFromShareableHandle) X(cuMemGetAllocationPropertiesFromHandle) X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) X(cuMulticastGetGranularity) X(cuMulticastCreate) X(cuMulticastAddDevice) X(cuMulticastBindMem) X(cuMulticastBindMem_v2) X(cuMulticastBindAddr) X(cuMulticastUnbind) X(cuMemGetHandleForAddressRange) X(cuMemcpyHtoD_v2) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) \
	X(cuModuleLoadData) X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuMemsetD8_v2) X(cuMemsetD8Async) X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamDestroy_v2) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture)

extern struct calls {
#define POINTER(name) __typeof__(name) *name;
	CALLS(POINTER)
#undef POINTER
} cuda;

// calls_bind binds the calls: "direct", as the linker does; "dlsym"; or "proc", with cuGetProcAddress.
void calls_bind(const char *how);

// storm_start starts threads that use the context; they end the program at the first error. storm_rounds is how often they have gone round.
void storm_start(int threads, CUcontext context);
// churn_start starts a thread that writes to so much memory all the time, and ends the program where some of it is not as it was written. churn_check returns 0, a CUresult, or -1 for a difference.
void churn_start(int mib, CUcontext context);
int churn_check(void);
// alternate_start starts a thread that has two managed allocations of so many MiB, which host and device change by turns, and ends the program where one does not see what the other has written. alternate_park has it stop
// after the "host" or the "device" has changed it, or go on. With the option preferred, the program
// prefers the host for one of the two, and the thread waits for the device before the host touches it. alternate_check returns 0, or -1 for a difference, and alternate_rounds is how often it has gone round.
// pool is NULL, or a pool of managed memory, which one of the two is of then.
void alternate_start(int mib, CUcontext context, CUmemoryPool pool);
int alternate_park(const char *where);
int alternate_check(void);
unsigned long long alternate_rounds(void);
// poll_start starts a thread that asks whether a stream is idle, as JAX does.
void poll_start(void);
unsigned long long storm_rounds(void);
// reduce_begin is called ahead of the first fork. reduce_start starts a thread that launches kernels which meet those of all other processes, one after the other; storm_rounds counts them.
void reduce_begin(void);
void reduce_start(CUcontext context);

// shared_lend returns a handle of an allocation in hex, and a sum over it; shared_borrow opens one, shared_sum sums it up again, and shared_return closes it. A
// process's own handle cannot be opened, which is no error: all processes are asked to.
CUresult shared_lend(unsigned block, char handle[129], uint64_t *sum);
CUresult shared_borrow(const char *handle, uint64_t *sum);
CUresult shared_sum(uint64_t *sum);
CUresult shared_return(void);

// Kinds of memory: of cuMemAlloc; with a handle, for descriptors; with handles of 2 MiB; with a handle that was released; that was retained after that; that is mapped only for a
// moment; that is mapped three times, to write, to read, and half of it without access; that was exported; that is never written.
enum { PLAIN, WHOLE, CHUNKED, RELEASED, RETAINED, HELD, TWICE, EXPORTED, BLANK };
int mapped_kind(const char *text); // -1: there is none
// mapped_make makes a block with handles on a device, and mapped_drop frees it. Between mapped_begin and mapped_end it is mapped. mapped_check returns 0, or -2 where something about it is
// not as without the library.
CUdeviceptr mapped_make(int device, int block, int ordinal, size_t bytes);
void mapped_drop(int device, int block);
void mapped_begin(int device, int block);
void mapped_end(int device, int block);
int mapped_check(int device, int block);
CUresult mapped_export(unsigned block);

// exchange_begin is called ahead of the first fork, exchange_offer then in each process, and exchange_accept when all have offered: each has memory that all others import. exchange_over writes
// to all of it, or compares: 0, a CUresult, or -1 for a difference.
void exchange_begin(void);
CUresult exchange_offer(void);
CUresult exchange_accept(void);
int exchange_over(int write);
// descriptor_send sends a descriptor and the process's number, and descriptor_receive returns one that was sent.
void descriptor_send(int socket, int fd);
int descriptor_receive(int socket, int flags, int *from); // flags of recvmsg(2)

// team_begin is called ahead of the first fork, team_make then in each process, team_join when all have done that, and team_bind when all have joined: all have a multicast object, with memory of each of their
// devices. team_over writes to all of it, or compares, as exchange_over. team_leave gives the object up.
void team_begin(void);
CUresult team_make(void);
CUresult team_join(void);
CUresult team_bind(void);
int team_over(int write);
CUresult team_leave(void);

// casts_begin is called ahead of the first fork. casts_start starts a thread that makes multicast objects with those of all other processes all the time, and ends the program where one does not
// work; casts_rounds counts them.
void casts_begin(void);
void casts_start(CUcontext context);
unsigned long long casts_rounds(void);

// graphs_start starts threads that capture streams into graphs all the time, and end the program where a capture fails. graphs_begin begins
// one capture, in a CUstreamCaptureMode, and graphs_end ends it.
void graphs_start(int threads);
CUresult graphs_begin(int mode);
CUresult graphs_end(void);
CUresult graphs_end_later(unsigned long ms);
CUresult graphs_late(void);

__attribute__((noreturn)) void die(const char *what, int code);
void must(const char *what, CUresult r);

// watch_start has threads of the process watch devices by NVML, and children that it forks. watch_answer says what they have seen. watch_failed is what NVML said wrong.
void watch_start(void);
void watch_answer(char *text, size_t size);
int watch_failed(void);

// children.c: children that do not use CUDA, as loader workers are. 0, or an error number.
int children_start(unsigned long count);
int children_churn(unsigned long ms);
int children_lost(void); // whether one that sleeps has ended

#endif
