// Kernels that programs load. Here they are C, known by the name that their text has.
#define _GNU_SOURCE
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <string.h>
#include <sys/mman.h>

#define UNIT ((size_t)1 << 20)

static const char name[] = "cryo_written";
static char module, function;

CUresult cuModuleLoadData(void **loaded, const void *text)
{
	CUresult r = orders_own("cuModuleLoadData");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (!loaded || !text))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && !strstr(text, name))
		r = CUDA_ERROR_INVALID_PTX;
	if (r == CUDA_SUCCESS)
		*loaded = &module;
	return leave(r);
}

CUresult cuModuleGetFunction(CUfunction *found, void *loaded, const char *wanted)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!found || !wanted || loaded != &module))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && strcmp(wanted, name))
		r = CUDA_ERROR_NOT_FOUND;
	if (r == CUDA_SUCCESS)
		*found = (CUfunction)&function;
	return leave(r);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!memory || !bytes || flags > 7))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && (*memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	return leave(r);
}

// written sets a byte for each unit that is not all zero.
static CUresult written(CUdeviceptr from, unsigned char *flags, unsigned units)
{
	if (!memory_holds(from, units * UNIT) && !virtual_holds(from, units * UNIT, 0))
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < units; i++) {
		const char *unit = (const char *)from + i * UNIT;

		if (*unit || memcmp(unit, unit + 1, UNIT - 1))
			flags[i] = 1;
	}
	return CUDA_SUCCESS;
}

CUresult kernel_run(CUfunction run, unsigned blocks, void **arguments)
{
	return run == (CUfunction)&function ? written(*(CUdeviceptr *)arguments[0], *(unsigned char **)arguments[1], blocks) : CUDA_ERROR_INVALID_HANDLE;
}
