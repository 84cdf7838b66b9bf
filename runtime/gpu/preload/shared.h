// Memory that processes share by descriptors: by cuMemExportToShareableHandle, as NCCL does over NVLink, and by handles of legacy IPC (ipc.h). The driver saves a process that has imported memory,
// or whose memory is imported, and cannot restore it. So imports are unmapped and released before the driver's checkpoint, and imported again afterwards from what their owners have then. The host
// finds out which import is which export by the descriptors: a process that passes one passes the open file, of which the libraries on both sides keep copies.
#ifndef CRYO_GPU_SHARED_H
#define CRYO_GPU_SHARED_H

#include "virtual.h"

// shared_pass makes a descriptor, the caller's, of a piece that is there, for another process. Its table, or its books, are locked. shared_forget closes the library's.
CUresult shared_pass(struct piece *p, int *fd);
void shared_forget(struct piece *p);
// shared_imported takes the driver's handle of memory that has come by a descriptor into the books, with virtual_lock. NULL: there is no room for it, and the handle is the caller's.
struct memory *shared_imported(CUmemGenericAllocationHandle handle, int fd);
// shared_count counts pieces that were passed, imports, and those that are not there.
struct shares { unsigned exports, imports, apart; };
struct shares shared_count(void);

// mappings_away unmaps all mappings of a memory, and mappings_back brings them back; each until one cannot be.
CUresult mappings_away(const struct memory *memory);
CUresult mappings_back(const struct memory *memory);

// HOST_NUMBER marks the number of memory of the host, and MULTICAST_NUMBER that of a multicast object: such are in no piece.
#define HOST_NUMBER 0x80000000u
#define MULTICAST_NUMBER 0x40000000u

// These are for the library's thread, behind the closed gate. shared_next goes to the next descriptor, at first to the first: of the piece with a number, of what is in no piece, or of the import with one.
struct passed { uint32_t number; int kind, fd; size_t next; };
int shared_next(struct passed *p);
// shared_kind says what a descriptor is of: an import, and of multicast objects how many devices the process has added, and how many the team has, where the process has made the object.
#define KIND_IMPORT 1u
#define KIND_ADDED 8
#define KIND_TEAM 16
uint32_t shared_kind(const struct passed *p);
// shared_part releases multicast objects, unmaps and releases imports, and closes all descriptors. After an error it has to be done again, or imports be brought back.
CUresult shared_part(void);
// shared_export makes a descriptor, the caller's, of the piece with a number; a multicast object is made anew for it. shared_import brings back an import by a descriptor, which it takes over: memory
// and its mappings, or a multicast object, which multicast_join and multicast_bind complete.
CUresult shared_export(uint32_t number, int *fd);
CUresult shared_import(uint32_t number, int fd, int multicast);

#endif
