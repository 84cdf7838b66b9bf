// Calls of the driver are waited for until a deadline, which none of them has.
#ifndef CRYO_GPU_DEADLINE_H
#define CRYO_GPU_DEADLINE_H

#include "cuda.h"

// deadline_run gives the result of a function that a thread of its own has run; CUDA_ERROR_NOT_READY: it was not through at the deadline
// (CLOCK_MONOTONIC, ns), or one before it was not. It goes on then.
CUresult deadline_run(CUresult (*f)(void), int64_t deadline);
// deadline_wait waits for one that was late; false where it still is.
int deadline_wait(int64_t deadline);
// deadline_forked is for the child of a fork.
void deadline_forked(void);

#endif
