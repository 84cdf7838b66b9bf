// Making and freeing of ranges, and the mapping of their pieces.
#ifndef CRYO_GPU_RANGE_H
#define CRYO_GPU_RANGE_H

#include "table.h"

// range_make makes a range in a context on its device. After an error nothing is left of it.
CUresult range_make(CUcontext context, CUdevice device, size_t asked, struct range *r);
// range_free frees what range_make has made.
CUresult range_free(struct range *r);
// range_free_put_off frees what was freed by the program while a stream was being captured. Contexts may be waited for; where they are idle
// already, idle is true.
void range_free_put_off(int idle);
// range_wait waits for the work of a context, as cuMemFree does.
CUresult range_wait(CUcontext context);
// range_create makes memory on a device that can be handed over.
CUresult range_create(CUdevice device, size_t bytes, CUmemGenericAllocationHandle *handle);
// range_map maps memory at an address, for its device and all that have access to it.
CUresult range_map(CUdevice device, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle);
// range_access gives another device access to all ranges of a device, or takes it away.
CUresult range_access(CUdevice device, CUdevice other, int access);

#endif
