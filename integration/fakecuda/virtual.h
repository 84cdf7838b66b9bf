// Memory with handles: made, mapped at reserved addresses, and passed to other processes as descriptors.
#ifndef FAKECUDA_VIRTUAL_H
#define FAKECUDA_VIRTUAL_H

#include "memory.h"

#define GRANULARITY ((size_t)2 << 20)

// order_at carries out the next order for a call about what is at an address, with a handle or without.
CUresult order_at(const char *call, CUdeviceptr pointer);

// All of these are called with the driver's lock held.

// virtual_holds says whether all of a range is mapped, and some device has access to it.
int virtual_holds(CUdeviceptr pointer, size_t bytes, int write);
// virtual_reaches returns whether one device may write to all of a range.
int virtual_reaches(CUdeviceptr pointer, size_t bytes, int device);
// virtual_find gives the mapping that a pointer is in; false where there is none.
int virtual_find(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, int *device);
// virtual_place returns where the driver finds the memory at an address, and how much of it follows there, if that is less.
char *virtual_place(CUdeviceptr pointer, size_t *bytes);
// virtual_range sets what was reserved about a pointer, whether something is mapped at it or not; false where nothing was.
int virtual_range(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes);
int virtual_types(CUdeviceptr pointer); // of handles that what is mapped there was made for
struct marks *virtual_marks(CUdeviceptr pointer); // of that, or NULL
size_t virtual_bytes(void);     // of all
int virtual_has_imported(void); // memory of another process
int team_any(void);              // a multicast object
int team_at(CUdeviceptr pointer); // it is mapped there
// team_copy writes to all memory that is bound where a pointer is, or adds it up; false where the pointer is in no multicast object.
int team_copy(CUdeviceptr pointer, size_t bytes, void *to, const void *from);
int virtual_has_host(void);     // memory of the host is mapped
// virtual_save makes all of it anonymous memory of the process. The way back has two steps, so that nothing has changed where there is no
// room: virtual_make for the files, on the devices as they will be, and then virtual_load or virtual_drop.
CUresult virtual_save(void);
CUresult virtual_make(const struct device moved[MAX_DEVICES]);
CUresult virtual_load(void);
void virtual_drop(const struct device moved[MAX_DEVICES]);
// virtual_forget is for a child after fork.
void virtual_forget(void);

#endif
