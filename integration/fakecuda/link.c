// A linker that compiles PTX: the cubin is behind the text (image.c).
#define _GNU_SOURCE
#include "driver.h"
#include "image.h"
#include "orders.h"

#include <stdlib.h>

struct linker { const void *cubin; };

CUresult cuLinkCreate_v2(unsigned count, int *options, void **values, CUlinkState *linker)
{
	CUresult r = orders_own("cuLinkCreate_v2");

	(void)count;
	(void)options;
	(void)values;
	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS)
		*linker = calloc(1, sizeof(struct linker));
	return leave(r);
}

// As the real one, it takes no fat binary with code that needs not be compiled.
CUresult cuLinkAddData_v2(CUlinkState linker, int type, void *data, size_t bytes, const char *name, unsigned count, int *options, void **values)
{
	CUresult r = enter();

	(void)type;
	(void)bytes;
	(void)name;
	(void)count;
	(void)options;
	(void)values;
	if (r == CUDA_SUCCESS)
		linker->cubin = image_compiled(data);
	return leave(r == CUDA_SUCCESS && !linker->cubin ? CUDA_ERROR_NO_BINARY_FOR_GPU : r);
}

CUresult cuLinkComplete(CUlinkState linker, void **cubin, size_t *bytes)
{
	*cubin = (void *)linker->cubin;
	*bytes = 0; // the library does not read it
	return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState linker)
{
	free(linker);
	return CUDA_SUCCESS;
}
