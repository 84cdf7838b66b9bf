// The door: every function of the driver that the program gets hold of is a stub that counts threads in and out, and that waits while
// the door is closed.
#ifndef CRYO_GPU_DOOR_H
#define CRYO_GPU_DOOR_H

// DOOR_HANDED is how many functions can be handed out beside those with names. The driver has some 700.
#define DOOR_HANDED 2048

#ifndef __ASSEMBLER__
#include <stdint.h>
#include <sys/types.h>

// door_for gives the stub for a function, the same one each time; NULL where there is none left.
void *door_for(void *function);
// door_ready is called once, long before door_close.
void door_ready(void);
// door_close makes new calls wait, and waits for those in progress until the deadline (CLOCK_MONOTONIC, ns). It is false where one was
// still in progress; the door is open again then.
int door_close(int64_t deadline);
void door_open(void);
// door_own is for the library's own threads: what they call passes.
void door_own(void);
// door_forked is for the child of a fork, in which only this thread runs.
void door_forked(void);
// door_gone is true for a thread of the process that has ended.
int door_gone(pid_t thread);

int64_t now_ns(void);
#endif

#endif
