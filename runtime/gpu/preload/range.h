// Making and freeing of ranges, and the mapping of their pieces.
#ifndef CRYO_GPU_RANGE_H
#define CRYO_GPU_RANGE_H

#include "table.h"

// MAX_DEVICES is more than any host has; those above get no memory from the library.
#define MAX_DEVICES 64

// range_begin notes which GPU each device is, when the driver has been initialised.
void range_begin(void);
// range_make makes a range in a context on its device. After an error nothing is left of it.
CUresult range_make(CUcontext context, CUdevice device, size_t asked, struct range *r);
// range_free frees what range_make has made.
CUresult range_free(struct range *r);
// range_free_put_off frees what was freed by the program while a stream was being captured. Contexts may be waited for; where they are idle
// already, idle is true.
void range_free_put_off(int idle);
// range_spare returns whether a pointer is in addresses that are kept for the next range.
int range_spare(CUdeviceptr pointer);
// range_wait waits for the work of a context, as cuMemFree does.
CUresult range_wait(CUcontext context);
// range_create makes memory for a range that can be handed over.
CUresult range_create(const struct range *r, size_t bytes, CUmemGenericAllocationHandle *handle);
// range_piece returns how large the pieces of a range are, but for the last one.
size_t range_piece(size_t range_bytes);
// range_map maps memory at an address, for its device and all that have access to it.
CUresult range_map(CUdevice device, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle);
// range_put maps memory of a range: as range_map, or, where the program has made it with a handle, for its device alone.
CUresult range_put(const struct range *r, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle);
// range_import gives a handle of memory on a device by its descriptor, which remains the caller's. CUDA_ERROR_INVALID_DEVICE: the driver takes it for
// another device's, as it does in a process that was restored onto a GPU with another number.
CUresult range_import(CUdevice device, int fd, CUmemGenericAllocationHandle *handle);
// range_mistaken is true where that is so with memory of the process's own.
int range_mistaken(void);
// range_accessors are the devices that have access to ranges of a device, by bits.
uint64_t range_accessors(CUdevice device);
// range_devices returns all devices that the process sees, by bits; range_everyone those of them that can have access to memory of one device.
uint64_t range_devices(void);
uint64_t range_everyone(CUdevice device);
// range_access gives another device access to all ranges of a device, or takes it away.
CUresult range_access(CUdevice device, CUdevice other, int access);

#endif
