// Cubins that programs load.
#ifndef FAKECUDA_IMAGE_H
#define FAKECUDA_IMAGE_H

#include "cuda.h"

// All of these are called with the driver's lock held. image_is returns whether the driver can load code: a cubin for sm_90, a fat binary that contains one, or PTX that can be compiled to one. image_load makes the variables of a cubin in the current context. image_variable finds one by its name. image_run runs the cubin's kernel.
struct image;
int image_is(const void *code);
int image_fat(const void *code); // whether it is a fat binary
// image_compiled returns the cubin that the driver would compile code to; NULL: it need not be compiled, or cannot be.
const void *image_compiled(const void *code);
CUresult image_load(const void *code, struct image **loaded);
void image_unload(struct image *i);
CUresult image_variable(const struct image *i, const char *name, CUdeviceptr *pointer, size_t *bytes);
CUresult image_run(const struct image *i);

#endif
