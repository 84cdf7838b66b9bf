// What the files of the driver's own side share. As in the real driver 580:
//
// Memory of cuMemCreate stays while it is mapped, whatever is released; cuMemRetainAllocationHandle returns the same handle again. cuMemUnmap and cuMemSetAccess take whole
// mappings without a gap, and access is a mapping's own (1 is to read). Addresses are not freed while something is mapped there. Handles are exported as they were asked for.
//
// A descriptor of cuMemCreate memory keeps the memory. Imported memory cannot be exported (1). A process that has any can be checkpointed but not
// restored (801).
//
// Where GPUs have a number (a file "number" beside "minor"), imports are looked for by the numbers that the process's devices had at cuInit, also after
// a restore onto other GPUs. None is 101, else that device is the memory's location (seen on two H200; that CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL says so
// too is assumed). cuMemSetAccess gives access to any device.
//
// A host cannot touch memory of a device at its addresses, and may map pages of its own there (seen on an H200). A call that copies from the host reads these. Kernels that have an illegal address are refused at their launch (700).
//
// Multicast objects are in multicast.c.
//
// A context has FAKECUDA_CONTEXT_MIB (0; of the program's environment) more, which a checkpoint makes one private mapping, mostly zeros. A restore says
// 999 if it differs. It also has local memory of FAKECUDA_LOCAL_THREADS (0) times CU_LIMIT_STACK_SIZE (1024): without room for a new limit that is 2
// and nothing has changed, below 16 bytes it is 1.
//
// Streams can be captured. What is unsafe then gives 900 and invalidates the capture, which cuStreamEndCapture reports (901).
#ifndef FAKECUDA_DRIVER_H
#define FAKECUDA_DRIVER_H

#include "memory.h"

struct fake_context {
	int device, alive, primary;
	unsigned retained;               // a primary one
	unsigned peers;                  // devices whose memory it may use, by bits
	size_t stack;                    // CU_LIMIT_STACK_SIZE
	CUdeviceptr local;               // memory for as many stacks as threads can run at once; 0: none
};

extern __thread CUcontext current;

// enter begins a call and leave ends it: between them no other call is in progress. enter waits while the driver is locked.
CUresult enter(void);
CUresult leave(CUresult r);
// enter_idle is enter, and waits for launched work.
CUresult enter_idle(void);

// Of the calls below, made between enter and leave, the first is for those that are unsafe while a stream is captured (cuThreadExchangeStreamCaptureMode of
// cuda.h), the second for those that wait for a context: captures that are in their way become invalid. The third is for what is done on a
// stream; captured: it goes into a graph.
CUresult streams_safe(void);
CUresult streams_whole(CUcontext context);
CUresult streams_take(CUstream stream, int *captured);
void streams_end(CUcontext context);
void streams_forget(void);

// local_make gives a context its local memory, for stacks of so many bytes, in the place of what it had. After an error it has what it had.
CUresult local_make(CUcontext context, size_t stack);

// kernel_run runs a kernel that was loaded, of so many blocks.
// kernel_busy has the device be at work for so many milliseconds more, and kernel_settle does what is left to do when its work ends.
void kernel_busy(unsigned ms);
void kernel_settle(void);
CUresult kernel_run(CUfunction function, unsigned blocks, void **arguments);

int contexts_on(int device); // there is one
int contexts_have_peers(void); // one has access to another's device
void contexts_restored(void);
void contexts_forget(void);    // for a child after fork

#endif
