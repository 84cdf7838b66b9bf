// What memory.c knows of addresses.
#ifndef CRYO_GPU_MEMORY_H
#define CRYO_GPU_MEMORY_H

#include "cuda.h"

// memory_ours is true for memory of so many bytes that the library may make.
int memory_ours(size_t bytes);
// memory_covers is true where any of these bytes is of memory of cuMemAlloc or cuMemAllocManaged that the library has made, or opened by a handle of legacy IPC.
int memory_covers(CUdeviceptr pointer, size_t bytes);

#endif
