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

// image contains copies of the cubins in some code, and nothing else of it. If it contained PTX, the driver would compile that, and make managed variables of its own.
struct image {
	char *code;
	size_t bytes;
	struct variable *variables;
	size_t count, most;
};

// image_read copies code if it has managed variables; false where it has none, or there is no room. Of a fat binary it reads cubins that are not compressed, as nvcc leaves them without -compress-all.
int image_read(struct image *i, const void *code);
// image_ready returns whether all devices can run code as it is. A library (cuLibraryLoadData) is loaded all the same if they cannot.
int image_ready(const void *code);
// image_managed returns whether a cubin in some code, for whatever device, or PTX that is not compressed has managed variables.
int image_managed(const void *code);
// image_compile is image_read for code with managed variables that the driver has to compile. The options are those that the program loads the code with (CUjit_option).
int image_compile(struct image *i, const void *code, unsigned count, int *options, void **values);
// image_cubin returns whether code is a cubin. image_fat returns whether it is a fat binary, and where that begins, and its bytes. image_has returns whether a cubin of it has managed variables.
int image_cubin(const void *code);
int image_fat(const void *code, const void **at, size_t *bytes);
int image_has(const void *code);
// image_suits returns whether code is a cubin, or has one for GPUs of a compute capability, 90 for 9.0.
int image_suits(const void *code, unsigned capability);
// image_bytes returns how much memory the variables need. image_place puts the variables there: it writes their addresses into the code, and takes away their names. It returns 0 if the code refers to them in an unknown way, or if the
// first value of one is the address of a variable of the driver's.
size_t image_bytes(const struct image *i);
int image_place(struct image *i, CUdeviceptr address);
void image_free(struct image *i);

#endif
