// Memory that the host copies while the program runs. The gate is open: what is listed may be freed or changed at any time, and the host finds out when all gates are closed.
#ifndef CRYO_GPU_PRECOPY_H
#define CRYO_GPU_PRECOPY_H

#include "table.h"

struct place { CUdeviceptr address; size_t bytes; CUdevice device; };

// precopy_list lists the pieces that there are now in ascending order of addresses, and returns how many. The list is valid until precopy_list_end.
size_t precopy_list(const struct place **places);
void precopy_list_end(void);
// precopy_lend gives a descriptor of the piece at an address, which the caller closes, until the next precopy_return: who frees that piece waits, since the driver frees memory when the
// last has let go of it. CUDA_ERROR_NOT_FOUND: there is no such piece any more.
CUresult precopy_lend(CUdeviceptr address, size_t bytes, int *fd);
void precopy_return(void);
// precopy_wait waits until the host has let go of these pieces, but not for ever. They can be found no more.
void precopy_wait(const struct piece *pieces, unsigned count);

#endif
