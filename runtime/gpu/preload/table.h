// Which device memory the program has from the library.
#ifndef CRYO_GPU_TABLE_H
#define CRYO_GPU_TABLE_H

#include "cuda.h"

// GRANULARITY is cuMemGetAllocationGranularity of every GPU that has virtual memory management, bytes.
#define GRANULARITY ((size_t)2 << 20)

// piece is memory that has a handle of its own. own: the process made it; else it is another process's, which cannot be exported again, and fd is the
// descriptor it came with. handle is 0 while the memory is elsewhere. passed is the descriptor by which others have it (shared.h), -1: none have.
struct piece {
	CUmemGenericAllocationHandle handle;
	size_t bytes;
	int own, fd, passed;
};

// range is one allocation of the program: pieces side by side at a reserved address.
struct range {
	CUdeviceptr address;
	size_t bytes, asked; // of all pieces; that the program wanted
	CUdevice device;
	CUcontext context;   // that it was made in, and ends with
	const CUmemAllocationProp *prop; // of memory that the program has made with a handle (virtual.h), as it asked for it; NULL: it is cuMemAlloc's
	unsigned count;
	struct piece *pieces;
	uint64_t number;     // in handles for other processes; 0: the program has asked for none
	uint8_t secret[16];  // the same
	int apart;           // the program has set CU_POINTER_ATTRIBUTE_SYNC_MEMOPS to 0
	int everywhere;      // all devices have access to it, as to managed memory
	int put_off;         // the program has freed it, while a stream was being captured
};

// The table is in ascending order of addresses. table_lock holds for everything that changes it; behind a closed gate no other thread does.
void table_lock(void);
void table_unlock(void);
// table_at gives the range at a place, or NULL past the last.
struct range *table_at(size_t place);
// table_in returns the range that has a pointer among what the program wanted; NULL where there is none. The table is locked.
struct range *table_in(CUdeviceptr pointer);
size_t table_pieces(void);
size_t table_foreign(void); // pieces that are there and not the process's own
// table_add takes a range over; it is false where there is no memory.
int table_add(const struct range *r);
// table_find copies the range that a pointer is in; false where there is none.
int table_find(CUdeviceptr pointer, struct range *r);
// table_covers is true where any of these bytes is of a range, be it one that was freed or what lies behind that which the program wanted.
int table_covers(CUdeviceptr pointer, size_t bytes);
// table_take takes out the range that begins at an address, or any one of a context's; false where there is none.
int table_take(CUdeviceptr address, struct range *r);
int table_take_of(CUcontext context, struct range *r);
// table_put_off marks the range that begins at an address as freed: it is found no more. table_take_put_off takes out one of these.
int table_put_off(CUdeviceptr address);
int table_take_put_off(struct range *r);
// table_forked is for the child of a fork: it closes what came with the memory, and forgets the rest.
void table_forked(void);

// room gives memory that is not malloc's, which the program may have replaced; NULL where there is none. room_free gives it back.
void *room(size_t bytes);
void room_free(void *memory, size_t bytes);

#endif
