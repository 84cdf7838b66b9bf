// What the files of the driver's own side share.
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

int contexts_have_peers(void); // peer access was enabled
void contexts_forget(void);    // for a child after fork

#endif
