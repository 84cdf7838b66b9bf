// Device code in which variables are managed (__managed__), as programs hand it to the driver. The driver makes memory for such a variable as it loads the code, and cannot save it.
#ifndef CRYO_GPU_IMAGE_H
#define CRYO_GPU_IMAGE_H

#include "cuda.h"

#include <stddef.h>

// variable is one that is managed. Cubins of a fat binary share those of one name, which must have the same size.
struct variable {
	const char *name;    // in code
	size_t bytes;
	CUdeviceptr address; // image_place sets it
	const char *initial; // its bytes at first, in code; NULL: zeros
};

// image is a copy of the code, without what is not a cubin, such as PTX: the driver would compile that, with managed variables of its own.
struct image {
	char *code;
	size_t bytes;
	struct variable *variables;
	size_t count, most;
};

// image_read copies code if it has managed variables; false where it has none, or there is no room. Of a fat binary it reads cubins that are not compressed, as nvcc leaves them without -compress-all.
int image_read(struct image *i, const void *code);
// image_bytes returns how much memory the variables need. image_place puts the variables there: it writes their addresses into the code, and takes away their names. It returns 0 if the code refers to them in an unknown way, or if the
// first value of one is the address of a variable of the driver's.
size_t image_bytes(const struct image *i);
int image_place(struct image *i, CUdeviceptr address);
void image_free(struct image *i);

#endif
