// The tables of memory with handles.
#ifndef FAKECUDA_HANDLES_H
#define FAKECUDA_HANDLES_H

#include "directory.h"
#include "virtual.h"

#define MOST 8192

// A handle's memory is a file of its device. It stays while the handle, a mapping, or a descriptor of it is somewhere.
struct handle {
	size_t bytes; // 0: not used
	int device;    // that it is on
	int location;  // the device that the driver takes that one for
	CUmemAllocationProp prop;
	int fd, imported;
	int host; // it is memory of the host
	struct team *team; // it is a multicast object (multicast.c)
	int retained; // how often, beside the handle that made it
	int released; // by the program; mappings may still be there
	int mapped;   // how often
	char *saved;  // by a checkpoint, where it is not mapped
	int made;     // the file that a restore gives it
	char made_name[MEMORY_NAME];
};

struct mapping {
	char *address; // NULL: not used
	char *place;   // of the memory in this process, for the driver alone; NULL: it has none
	size_t bytes, offset;
	struct handle *handle;
	struct marks marks;
	unsigned char access[MAX_DEVICES]; // of each device, CU_MEM_ACCESS_FLAGS
};

struct reservation { char *address; size_t bytes; };

extern struct handle handles[MOST];
extern struct mapping mappings[MOST];
extern struct reservation reservations[MOST];

// handle_of returns what a value is the handle of, or NULL: memory that is mapped has one still when it is released. handle_new returns one that is not used, or NULL, and value_of its value.
struct handle *handle_of(CUmemGenericAllocationHandle value);
struct handle *handle_new(void);
CUmemGenericAllocationHandle value_of(const struct handle *h);
// order_of carries out the next order for a call about memory with a handle.
CUresult order_of(const char *call, CUmemGenericAllocationHandle value);

// team_is reports whether a descriptor is of a multicast object. team_import makes a handle a multicast object by its descriptor. team_drop closes what the handle has open.
int team_is(int fd);
// team_again is directory_again for one.
int team_again(int fd);
CUresult team_import(struct handle *h, int fd);
void team_drop(struct handle *h);
// team_wait waits, between enter and leave, until all devices are added, if a value is a multicast object's. Handles may have been released meanwhile.
CUresult team_wait(CUmemGenericAllocationHandle value, CUresult r);

// place_make maps the memory of a mapping where the fake driver reads and writes it. place_drop unmaps it.
CUresult place_make(struct mapping *m);
void place_drop(struct mapping *m);

// inside finds the first mapping in a range; NULL where there is none.
struct mapping *inside(CUdeviceptr pointer, size_t bytes);
// reserve maps addresses without memory.
char *reserve(void *at, size_t bytes, int flags);

#endif
