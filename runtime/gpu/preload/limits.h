// The stack that each thread of a device may have (CU_LIMIT_STACK_SIZE). The driver has so much local memory for each context, times all threads that can be
// on the device at once: 264 MiB on an H200 with the default of 1024 bytes. Its checkpoint copies that into the process, and its restore copies it back.
#ifndef CRYO_GPU_LIMITS_H
#define CRYO_GPU_LIMITS_H

#include "cuda.h"

// limits_lower gives each context as little as is of use, while nothing can be launched. One that the driver refuses it for stays as it is.
void limits_lower(void);
// limits_set_back gives contexts what they had. After an error some have not, and it is to be called again before anything is launched.
CUresult limits_set_back(void);
// limits_forked is for the child of a fork.
void limits_forked(void);

#endif
