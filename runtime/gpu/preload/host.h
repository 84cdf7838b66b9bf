// Memory of the host that the program makes with handles (cuMemCreate), as NCCL does for ranks that reach each other through the host. The driver saves a process that has it mapped and cannot
// restore it (999). So its bytes are copied into memory of the process, and it is unmapped and released before the driver's checkpoint, and made anew afterwards.
#ifndef CRYO_GPU_HOST_H
#define CRYO_GPU_HOST_H

#include "virtual.h"

// host_goes is true for such memory, as a program asks for it. host_make makes it; NULL: the driver is to do it.
int host_goes(size_t bytes, const CUmemAllocationProp *prop);
struct memory *host_make(size_t bytes, const CUmemAllocationProp *prop);
// host_is is true for a location on the host.
int host_is(const CUmemLocation *location);
unsigned host_count(void);

// These are for the library's thread, behind the closed gate. host_take_away has all of it saved and gone; after an error all of it is there. host_give_back brings back what is gone, and
// can be called again after an error.
CUresult host_take_away(void);
CUresult host_give_back(void);

#endif
