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
	int retained; // how often, beside the handle that made it
	int released; // by the program; mappings may still be there
	int mapped;   // how often
	char *saved;  // by a checkpoint, where it is not mapped
	int made;     // the file that a restore gives it
	char made_name[MEMORY_NAME];
};

struct mapping {
	char *address; // NULL: not used
	size_t bytes, offset;
	struct handle *handle;
	struct marks marks;
	unsigned char access[MAX_DEVICES]; // of each device, CU_MEM_ACCESS_FLAGS
};

struct reservation { char *address; size_t bytes; };

extern struct handle handles[MOST];
extern struct mapping mappings[MOST];
extern struct reservation reservations[MOST];

// inside finds the first mapping in a range; NULL where there is none.
struct mapping *inside(CUdeviceptr pointer, size_t bytes);
// reserve maps addresses without memory.
char *reserve(void *at, size_t bytes, int flags);

#endif
