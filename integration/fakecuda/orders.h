// Failures to order. FAKECUDA_ORDERS names a file of lines "CALL N ACTION [always]".
//
// CALL: init, state, lock, checkpoint, restore or unlock; or a call of the program itself, which then needs FAKECUDA_ORDERS in its own environment:
// cuMemAlloc, cuMemFree, cuCtxSynchronize, cuCtxGetLimit, cuCtxSetLimit, cuMemHostRegister, cuMemcpyHtoD, DtoH, DtoD (each also with Async),
// cuMemsetD8, cuMemGetInfo, cuDeviceCanAccessPeer, and each call about memory with handles or multicast objects, except cuMemGetAllocationGranularity and cuMulticastGetGranularity. All versions of a call have one name.
// CALL also names kernels: cryo_written finds zeros, and cryo_sums sums memory. An order for cryo_sums.wrong makes the sums wrong. An order "stack N error BYTES" makes cuCtxSetLimit set so many bytes.
//
// N: the nth process by pid of its session, of those that use the fake driver, from 1; or *. N@UUID: only calls about memory of that device: copies
// (between devices: to it) and memory with handles.
//
// ACTION: "error CODE" (nothing is done); "delay MS" (before the call; further orders follow); "slow MS" (in the process); exit (the caller dies by
// SIGKILL before it), exit-after (not for a program's own calls); "crash CODE" (the process that the call is for is ended by SIGKILL after it, as real
// drivers have done, and the call's result is CODE; not for a program's own calls); hang; pass (lets one call by).
//
// An order that has been carried out gets a # for its first character, unless it ends in always. FAKECUDA_LOG names a file to which each call is
// appended: "CALL PID RESULT".
#ifndef FAKECUDA_ORDERS_H
#define FAKECUDA_ORDERS_H

#include "cuda.h"

struct order {
	CUresult error;   // instead of the call
	unsigned slow_ms; // in the process
	int exit_after;
	int crash; // of the process
};

// orders_take carries out the next order for this call, waits included, and gives what is left of it to do.
struct order orders_take(const char *call, int pid);
// orders_done writes the log, and ends the helper where that was ordered. It returns the result.
CUresult orders_done(const struct order *order, const char *call, int pid, CUresult result);
// orders_init is both for cuInit.
CUresult orders_init(void);
// orders_own carries out the next order for a call that a program makes for itself. It is not logged.
CUresult orders_own(const char *call);
// orders_on is the same for a call that is about one device's memory; NULL: it is not known which. orders_given is false where nobody need look for it.
CUresult orders_on(const char *call, const CUuuid *device);
int orders_given(void);
// process_number is the nth process by pid in pid's session, of those that use the fake driver, from 1; 0: none of them.
int process_number(int pid);

#endif
