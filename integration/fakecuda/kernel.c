// Kernels that programs load. Here they are C, known by the name that their text has.
#define _GNU_SOURCE
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <string.h>
#include <sys/mman.h>

#define UNIT ((size_t)1 << 20)

typedef CUresult run(unsigned blocks, void **arguments);

static run written, sums;
static const struct kernel { const char *name; run *run; } kernels[] = {{"cryo_written", written}, {"cryo_sums", sums}};

// named finds the kernel that a text has.
static const struct kernel *named(const char *text)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (strstr(text, kernels[i].name))
			return &kernels[i];
	return NULL;
}

CUresult cuModuleLoadData(void **loaded, const void *text)
{
	CUresult r = orders_own("cuModuleLoadData");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (!loaded || !text))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && !named(text))
		r = CUDA_ERROR_INVALID_PTX;
	if (r == CUDA_SUCCESS)
		*loaded = (void *)named(text);
	return leave(r);
}

CUresult cuModuleGetFunction(CUfunction *found, void *loaded, const char *wanted)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!found || !wanted || !loaded))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && strcmp(wanted, ((const struct kernel *)loaded)->name))
		r = CUDA_ERROR_NOT_FOUND;
	if (r == CUDA_SUCCESS)
		*found = (CUfunction)loaded;
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

static int holds(CUdeviceptr from, size_t bytes) { return memory_holds(from, bytes) || virtual_holds(from, bytes, 0); }

// written sets a byte for each unit that is not all zero.
static CUresult written(unsigned units, void **arguments)
{
	CUdeviceptr from = *(CUdeviceptr *)arguments[0];
	unsigned char *flags = *(unsigned char **)arguments[1];
	CUresult r = orders_own("cryo_written");

	if (r == CUDA_SUCCESS && !holds(from, units * UNIT))
		r = CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; r == CUDA_SUCCESS && i < units; i++) {
		const char *unit = (const char *)from + i * UNIT;

		if (*unit || memcmp(unit, unit + 1, UNIT - 1))
			flags[i] = 1;
	}
	return r;
}

#define PART ((size_t)32 << 10)
#define PASSES 4

// sums is NH of RFC 4418, of each part of 32 KiB, in four passes with the key shifted by four words. The order "cryo_sums N error CODE" fails it, and "cryo_sums.wrong" has it leave out the last word.
static CUresult sums(unsigned units, void **arguments)
{
	const uint32_t *words = *(const uint32_t **)arguments[0], *key = *(const uint32_t **)arguments[1];
	uint64_t *out = *(uint64_t **)arguments[2];
	CUresult r = orders_own("cryo_sums");
	size_t count = PART / 4;

	if (r == CUDA_SUCCESS && (!holds((CUdeviceptr)words, units * UNIT) || !holds((CUdeviceptr)key, PART + 16 * (PASSES - 1))))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (orders_own("cryo_sums.wrong") != CUDA_SUCCESS)
		count -= 2;
	for (size_t part = 0; part < units * (UNIT / PART); part++, words += PART / 4)
		for (size_t pass = 0; pass < PASSES; pass++, out++) {
			const uint32_t *k = key + 4 * pass;
			uint64_t sum = 0;

			for (size_t i = 0; i < count; i += 2)
				sum += (uint64_t)(words[i] + k[i]) * (uint32_t)(words[i + 1] + k[i + 1]);
			*out = sum;
		}
	return CUDA_SUCCESS;
}

CUresult kernel_run(CUfunction function, unsigned blocks, void **arguments)
{
	const struct kernel *k = (const struct kernel *)function;

	return k >= kernels && k < kernels + sizeof(kernels) / sizeof(*kernels) ? k->run(blocks, arguments) : CUDA_ERROR_INVALID_HANDLE;
}
