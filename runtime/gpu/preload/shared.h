// Memory that processes share by descriptors (cuMemExportToShareableHandle), as NCCL does over NVLink. The driver saves a process that has imported memory, or whose memory is imported, and
// cannot restore it. So imports are unmapped and released before the driver's checkpoint, and imported again afterwards from what their owners have then. The host finds out
// which import is of which export by the descriptors, of which the library keeps copies: who passes one passes the open file. Only the host's side knows more than one process.
#ifndef CRYO_GPU_SHARED_H
#define CRYO_GPU_SHARED_H

#include "virtual.h"

// These are for the program's calls, with virtual_lock. shared_exported keeps a copy of a descriptor by which memory was exported, and shared_imported one of what has come, whose driver's
// handle it takes over; false or NULL where there is no room for it.
int shared_exported(struct memory *m, int fd);
struct memory *shared_imported(CUmemGenericAllocationHandle handle, int fd);
// shared_forget closes the descriptors by which memory was exported.
void shared_forget(struct memory *m);

// These are for the library's thread, behind the closed gate; but for shared_next and shared_apart. shared_next goes to the next descriptor, at first to the first, without those of imports that are not there.
struct passed { size_t place; int imported, fd; size_t next_export; int begun; };
int shared_next(struct passed *p);
// shared_part unmaps and releases imports, and closes all descriptors; it tells whether there were any. After an error all imports are there.
CUresult shared_part(int *any);
// shared_any is true where something is shared that was not taken apart.
int shared_any(void);
// shared_apart counts the imports that are not there.
unsigned shared_apart(void);
// shared_export makes a descriptor of the memory at a place, which stays the library's. shared_import brings back the import at a place by a descriptor, which it takes over.
CUresult shared_export(size_t place, int *fd);
CUresult shared_import(size_t place, int fd);

#endif
