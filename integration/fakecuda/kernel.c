// Kernels that programs load. Here they are C, known by the name that their text has, or by the cubin that has them (image.c).
#define _GNU_SOURCE
#include "driver.h"
#include "image.h"
#include "orders.h"
#include "virtual.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define UNIT ((size_t)1 << 20)

typedef CUresult run(unsigned blocks, void **arguments);

static run written, sums, add, later, wait_for;
static const struct kernel { const char *name; run *run; } kernels[] = {{"cryo_written", written}, {"cryo_sums", sums}, {"fake_add", add}, {"fake_later", later}, {"fake_wait", wait_for}};

// The additions that launched kernels make when they end. Few kernels run at a time. A kernel that waits ends when the host has written to its first word.
static struct addition { CUdeviceptr at; size_t words; uint64_t value; int waits; } additions[64];
static unsigned additions_count;

// named finds the kernel that a text has.
static const struct kernel *named(const char *text)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (strstr(text, kernels[i].name))
			return &kernels[i];
	return NULL;
}

static int is_kernel(const void *loaded) { return (const struct kernel *)loaded >= kernels && (const struct kernel *)loaded < kernels + sizeof(kernels) / sizeof(*kernels); }

CUresult cuModuleLoadData(void **loaded, const void *text)
{
	CUresult r = orders_own("cuModuleLoadData");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (!loaded || !text))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && image_is(text))
		return leave(current ? image_load(text, (struct image **)loaded) : CUDA_ERROR_INVALID_CONTEXT);
	if (r == CUDA_SUCCESS && !named(text))
		r = image_fat(text) ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_INVALID_PTX;
	if (r == CUDA_SUCCESS)
		*loaded = (void *)named(text);
	return leave(r);
}

CUresult cuModuleUnload(void *loaded)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !is_kernel(loaded))
		image_unload(loaded);
	return leave(r);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, void *loaded, const char *wanted)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = is_kernel(loaded) ? CUDA_ERROR_NOT_FOUND : image_variable(loaded, wanted, pointer, bytes);
	return leave(r);
}

CUresult cuModuleGetFunction(CUfunction *found, void *loaded, const char *wanted)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!found || !wanted || !loaded))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && strcmp(wanted, is_kernel(loaded) ? ((const struct kernel *)loaded)->name : "fake_variables"))
		r = CUDA_ERROR_NOT_FOUND;
	if (r == CUDA_SUCCESS)
		*found = (CUfunction)loaded;
	return leave(r);
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
	CUresult r = orders_own("cuMemHostAlloc");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
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
		size_t n = UNIT;
		const char *unit = virtual_place(from + i * UNIT, &n);

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
	const uint32_t *from = *(const uint32_t **)arguments[0], *key = *(const uint32_t **)arguments[1], *words = NULL;
	uint64_t *out = *(uint64_t **)arguments[2];
	CUresult r = orders_own("cryo_sums");
	size_t count = PART / 4;

	if (r == CUDA_SUCCESS && (!holds((CUdeviceptr)from, units * UNIT) || !holds((CUdeviceptr)key, PART + 16 * (PASSES - 1))))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return r;
	if (orders_own("cryo_sums.wrong") != CUDA_SUCCESS)
		count -= 2;
	for (size_t part = 0; part < units * (UNIT / PART); part++, words += PART / 4) {
		size_t n = UNIT;

		if (part % (UNIT / PART) == 0)
			words = (const uint32_t *)virtual_place((CUdeviceptr)(from + part * (PART / 4)), &n);
		for (size_t pass = 0; pass < PASSES; pass++, out++) {
			const uint32_t *k = key + 4 * pass;
			uint64_t sum = 0;

			for (size_t i = 0; i < count; i += 2)
				sum += (uint64_t)(words[i] + k[i]) * (uint32_t)(words[i + 1] + k[i + 1]);
			*out = sum;
		}
	}
	return CUDA_SUCCESS;
}

static void perform(const struct addition *a)
{
	for (size_t done = 0, n; done < 8 * a->words; done += n) {
		uint64_t *words;

		n = 8 * a->words - done;
		words = (uint64_t *)virtual_place(a->at + done, &n);
		for (size_t i = 0; i < n / 8; i++)
			words[i] += a->value;
	}
}

static CUresult queue(void **arguments, unsigned ms, int waits)
{
	struct addition a = {*(CUdeviceptr *)arguments[0], *(size_t *)arguments[1], *(uint64_t *)arguments[2], waits};

	if (!memory_holds(a.at, 8 * a.words) && !virtual_reaches(a.at, 8 * a.words, current->device))
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (additions_count == sizeof(additions) / sizeof(*additions))
		return CUDA_ERROR_OUT_OF_MEMORY;
	additions[additions_count++] = a;
	kernel_busy(ms);
	return CUDA_SUCCESS;
}

// add adds a value to so many words of 64 bits.
static CUresult add(unsigned blocks, void **arguments)
{
	(void)blocks;
	return queue(arguments, 0, 0);
}

// later does the same when so many milliseconds have passed: that is how long the kernel runs.
static CUresult later(unsigned blocks, void **arguments)
{
	(void)blocks;
	return queue(arguments, *(unsigned *)arguments[3], 0);
}

// wait_for makes its addition when the host has written to the first word.
static CUresult wait_for(unsigned blocks, void **arguments)
{
	(void)blocks;
	return queue(arguments, 0, 1);
}

static void wait_until_written(CUdeviceptr at)
{
	size_t n = sizeof(uint64_t);

	while (!__atomic_load_n((uint64_t *)virtual_place(at, &n), __ATOMIC_ACQUIRE))
		usleep(100);
}

void kernel_settle(void)
{
	for (unsigned i = 0; i < additions_count; i++) {
		if (!holds(additions[i].at, 8 * additions[i].words))
			abort(); // the program has freed it under the kernel
		if (additions[i].waits)
			wait_until_written(additions[i].at);
		perform(&additions[i]);
	}
	additions_count = 0;
}

CUresult kernel_run(CUfunction function, unsigned blocks, void **arguments)
{
	return is_kernel(function) ? ((const struct kernel *)function)->run(blocks, arguments) : image_run((const struct image *)function);
}
