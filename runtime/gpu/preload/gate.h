// The gate: every function of the driver that the program gets hold of is a stub that counts threads in and out, and that waits while
// the gate is closed.
#ifndef CRYO_GPU_GATE_H
#define CRYO_GPU_GATE_H

// GATE_HANDED is how many functions can be handed out beside those with names. The driver has some 700.
#define GATE_HANDED 2048

#ifndef __ASSEMBLER__
#include <stdint.h>
#include <sys/types.h>

// gate_for returns the stub for a function of that name, the same one each time; NULL where there is none left.
void *gate_for(void *function, const char *name);
// gate_ready is called once, long before gate_close.
void gate_ready(void);
// gate_close makes new calls wait, and waits for those in progress until the deadline (CLOCK_MONOTONIC, ns). It is false where one was
// still in progress; the gate is open again then, unless it is to stay closed.
int gate_close(int64_t deadline, int stay);
void gate_open(void);
// gate_steps lets each thread that waits at the closed gate make one call, and again when these are back and a thread waits, so many times. It ends early after
// 100 ms, and where one of these turns takes more than 2 ms: a call waits for a device, or the program for something else. gate_close follows.
void gate_steps(unsigned calls);
// gate_own is for the library's own threads: what they call passes.
void gate_own(void);
// gate_forked is for the child of a fork, in which only this thread runs.
void gate_forked(void);
// gate_gone is true for a thread of the process that has ended.
int gate_gone(pid_t thread);


// gate_watch has each call that starts work on a device, which may touch any memory of the program, call a function first from now on. If that returns other than 0, the call returns it, and starts
// nothing.
void gate_watch(int (*before)(void));
// gate_starts is for a call of the program that starts work: it does so until it returns. gate_started waits for the calls of other threads that do, but not for those of the thread with a number.
void gate_starts(void);
void gate_started(pid_t but);
// gate_in and gate_out are around what a thread does as if it were a call: it waits where the gate is closed.
void gate_in(void);
void gate_out(void);

int64_t now_ns(void);
#endif

#endif
