// The contexts of the process.
#ifndef CRYO_GPU_CONTEXT_H
#define CRYO_GPU_CONTEXT_H

#include "cuda.h"

// contexts_each calls a function for every context, which is current then, until one fails. The calling thread has none current afterwards. It is
// for a closed gate, behind which no thread makes contexts or destroys any.
CUresult contexts_each(CUresult (*f)(CUcontext context));
// contexts_synchronize waits until no work is left in any context, as contexts_each.
CUresult contexts_synchronize(void);
// context_on returns a context on a device; NULL: there is none. It is for a closed gate, too.
CUcontext context_on(CUdevice device);
// context_enter makes a context current for this thread until context_leave. Meanwhile the thread may copy while streams are captured.
struct entered { CUcontext context; int mode; };
CUresult context_enter(struct entered *e, CUcontext context);
void context_leave(struct entered *e);
// contexts_forked is for the child of a fork.
void contexts_forked(void);

#endif
