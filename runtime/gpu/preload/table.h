// Which device memory the program has from the library.
#ifndef CRYO_GPU_TABLE_H
#define CRYO_GPU_TABLE_H

#include "cuda.h"

// GRANULARITY is cuMemGetAllocationGranularity of every GPU that has virtual memory management, bytes.
#define GRANULARITY ((size_t)2 << 20)

// piece is memory that has a handle of its own, which is 0 while the memory is elsewhere.
struct piece {
	CUmemGenericAllocationHandle handle;
	size_t bytes;
};

// range is one allocation of the program: pieces side by side at a reserved address.
struct range {
	CUdeviceptr address;
	size_t bytes, asked; // of all pieces; that the program wanted
	CUdevice device;
	CUcontext context;   // that it was made in, and ends with
	unsigned count;
	struct piece *pieces;
	int put_off;         // the program has freed it, while a stream was being captured
};

// The table is in ascending order of addresses. table_lock holds for everything that changes it; behind a closed gate nobody else does.
void table_lock(void);
void table_unlock(void);
// table_at gives the range at a place, or NULL past the last.
struct range *table_at(size_t place);
size_t table_pieces(void);
// table_add takes a range over; it is false where there is no memory.
int table_add(const struct range *r);
// table_find copies the range that a pointer is in; false where there is none.
int table_find(CUdeviceptr pointer, struct range *r);
// table_take takes out the range that begins at an address, or any one of a context's; false where there is none.
int table_take(CUdeviceptr address, struct range *r);
int table_take_of(CUcontext context, struct range *r);
// table_put_off marks the range that begins at an address as freed: it is found no more. table_take_put_off takes out one of these.
int table_put_off(CUdeviceptr address);
int table_take_put_off(struct range *r);
// table_forked is for the child of a fork: it forgets all.
void table_forked(void);

// room gives memory that is not malloc's, which the program may have replaced; NULL where there is none. room_free gives it back.
void *room(size_t bytes);
void room_free(void *memory, size_t bytes);

#endif
