// What is handed over, since the gate was closed.
#ifndef CRYO_GPU_LISTED_H
#define CRYO_GPU_LISTED_H

#include "cuda.h"

#include <stddef.h>

// listed_make lists it. Where a process may not have a descriptor of each piece of memory with handles, for so many files in all, that memory is left to the driver.
CUresult listed_make(size_t files);
size_t listed_pieces(void);

#endif
