// Devices and their memory, as a process sees them.
#ifndef FAKECUDA_MEMORY_H
#define FAKECUDA_MEMORY_H

#include "control.h"

struct device {
	CUuuid uuid;
	int64_t total;
	int minor;  // of its device node; -1: it has none
	int number; // that the GPU had when the driver was initialised; -1: none
};

// marks are attributes of an allocation: CU_POINTER_ATTRIBUTE_BUFFER_ID and CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
struct marks { uint64_t id; int sync; };
struct marks marks_new(void);

extern struct device devices[MAX_DEVICES];
extern int devices_count;

// All of these are called with the driver's lock held.

CUresult devices_find(void);
// memory_alloc makes memory that lasts until the context ends.
CUresult memory_alloc(CUcontext context, int device, size_t bytes, int managed, CUdeviceptr *pointer);
CUresult memory_free(CUdeviceptr pointer);
void memory_free_all(CUcontext context);
size_t memory_bytes(void); // of all
// memory_find gives the allocation that a pointer is in; false where there is none.
int memory_find(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, CUcontext *context, int *device);
// memory_marks returns those of the allocation that a pointer is in, or NULL.
struct marks *memory_marks(CUdeviceptr pointer);
// memory_holds says whether all of a range is in one allocation.
int memory_holds(CUdeviceptr pointer, size_t bytes);
int memory_is_managed(void); // any of it
int pools_any(void); // whether there is a pool of managed memory
int memory_managed(CUdeviceptr pointer, size_t bytes); // whether all of a range is in one such allocation
// memory_lend makes a handle of an allocation, by which another process opens it; memory_borrow opens one in a context, or once more, and memory_return
// closes it. memory_opened is how often the one that begins at an address was opened, memory_has_opened is true where any is.
CUresult memory_lend(CUdeviceptr base, CUipcMemHandle *handle);
CUresult memory_borrow(CUcontext context, const CUipcMemHandle *handle, CUdeviceptr *pointer);
CUresult memory_return(CUdeviceptr base);
int memory_opened(CUdeviceptr base);
int memory_has_opened(void);
// memory_save makes device memory anonymous memory of the process; memory_load is the way back, onto the devices that the pairs say.
CUresult memory_save(void);
CUresult memory_load(const CUcheckpointGpuPair *pairs, unsigned count);
// residue_save and residue_load are the same for what contexts have; CUDA_ERROR_UNKNOWN: it is not what was saved. residue_forget is for a child.
CUresult residue_save(void);
CUresult residue_load(void);
void residue_forget(void);
// nvml_saved has NVML, if the process has it, close its device files, or open them again: the real driver saves both since version 570.
void nvml_saved(int saved);
// held_open makes sure that CRIU cannot dump the process until memory_save; false where it cannot be done.
int held_open(void);
// memory_forget is for a child after fork, which has no devices.
void memory_forget(void);

#endif
