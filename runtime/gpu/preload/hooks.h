// The library's versions of functions of the driver. They are called behind the gate.
#ifndef CRYO_GPU_HOOKS_H
#define CRYO_GPU_HOOKS_H

#include "cuda.h"

#define X(name, arguments) CUresult hook_##name arguments;
DRIVER(X)
#undef X

// hook_create gives the hook for a version of cuCtxCreate that is in no symbol table.
void *hook_create(void *real);

#endif
