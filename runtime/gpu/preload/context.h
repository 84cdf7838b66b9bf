// The contexts of the process.
#ifndef CRYO_GPU_CONTEXT_H
#define CRYO_GPU_CONTEXT_H

#include "cuda.h"

// contexts_synchronize waits until no work is left in any context. The calling thread has none current afterwards.
CUresult contexts_synchronize(void);
// contexts_forked is for the child of a fork.
void contexts_forked(void);

#endif
