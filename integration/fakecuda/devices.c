// What a process of fakeapp has on its devices, and what is done with it.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHUNK (256 * 1024)

static CUdeviceptr memory[MAX_DEVICES][MAX_BLOCKS];

// pattern writes words of the pattern from number first on, four at once. No page is like another.
static void pattern(uint64_t words[CHUNK / 8], int device, size_t first)
{
	typedef uint64_t four __attribute__((vector_size(32)));
	const uint64_t step = UINT64_C(0x9e3779b97f4a7c15); // of splitmix64 (Steele, Lea, Flood 2014)
	const uint64_t begin = (key << 48 ^ (uint64_t)number << 40 ^ (uint64_t)device << 32) + first * step;
	four x = {begin, begin + step, begin + 2 * step, begin + 3 * step};

	for (size_t i = 0; i < CHUNK / 8; i += 4, x += 4 * step) {
		four y = x ^ x >> 29;

		y += y << 19;
		y ^= y >> 32;
		memcpy(words + i, &y, sizeof(y));
	}
}

// over_block is devices_over for one allocation, of which words begin at number first. A blank one is zero.
static int over_block(int device, CUdeviceptr block, size_t all, size_t first, int write, int blank)
{
	static uint64_t want[CHUNK / 8], got[CHUNK / 8];

	if (blank)
		memset(want, 0, CHUNK);
	for (size_t done = 0; done < all; done += CHUNK) {
		CUresult r;

		if (!blank)
			pattern(want, device, first + done / 8);
		if (write)
			r = cuda.cuMemcpyHtoD_v2(block + done, want, CHUNK);
		else
			r = cuda.cuMemcpyDtoH_v2(got, block + done, CHUNK);
		if (r != CUDA_SUCCESS)
			return r;
		if (!write && memcmp(got, want, CHUNK))
			return -1;
	}
	return 0;
}

// devices_over writes the pattern to a device's memory, or reads it back and compares. It gives 0, a CUresult, or -1 for a difference.
int devices_over(int device, int write)
{
	size_t first = 0;
	int r = 0;

	for (int b = 0; b < options.blocks && !r; b++) {
		size_t bytes = (size_t)options.block[b] << 20;

		mapped_begin(device, b);
		r = over_block(device, memory[device][b], bytes, first, write, options.kind[b] == BLANK);
		mapped_end(device, b);
		first += bytes / 8;
	}
	return r;
}

// devices_ranges compares what the driver says of allocations with what they are. It gives 0, a CUresult, or -2 for a difference.
int devices_ranges(int device)
{
	// A device that has access to the first one's memory is not given it again.
	if (options.peer && device > 0) {
		CUresult r;

		must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[device]));
		r = cuda.cuCtxEnablePeerAccess(contexts[0], 0);
		must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
		if (r != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
			return -2;
	}
	for (int b = 0; b < options.blocks; b++) {
		CUdeviceptr base = 0, start = 0, at = memory[device][b];
		size_t bytes = 0, size = 0, want = (size_t)options.block[b] << 20;
		int attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
		void *values[] = {&start, &size};
		CUcontext context = NULL;
		CUresult r;

		if (options.kind[b]) {
			int different;

			mapped_begin(device, b);
			different = mapped_check(device, b);
			mapped_end(device, b);
			if (different)
				return different;
			continue;
		}
		r = cuda.cuMemGetAddressRange_v2(&base, &bytes, at + want / 2);

		if (r == CUDA_SUCCESS)
			r = cuda.cuPointerGetAttributes(2, attributes, values, at + want - 1);
		if (r == CUDA_SUCCESS)
			r = cuda.cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, at);
		if (r != CUDA_SUCCESS)
			return r;
		if (base != at || bytes != want || start != at || size != want || context != contexts[device])
			return -2;
	}
	return 0;
}

// devices_launch starts a kernel of so many milliseconds on the current context's device.
CUresult devices_launch(unsigned ms)
{
	void *arguments[] = {&ms};

	return cuda.cuLaunchKernel(NULL, 1, 2, 3, 4, 5, 6, 0, NULL, arguments, NULL);
}

CUresult devices_limit(int device, size_t bytes)
{
	CUresult r;

	if (device >= devices)
		return CUDA_ERROR_INVALID_DEVICE;
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[device]));
	r = cuda.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes);
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
	return r;
}

size_t devices_limit_of(int device)
{
	size_t bytes;

	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[device]));
	must("cuCtxGetLimit", cuda.cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE));
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
	return bytes;
}

void devices_uuid(int device, char text[41])
{
	CUuuid u;

	must("cuDeviceGetUuid", cuda.cuDeviceGetUuid(&u, first + device));
	text += sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)u.bytes[i]);
}

// fill_devices makes a context and memory on each device.
static void fill_devices(void)
{
	for (int d = 0; d < devices; d++) {
		must("cuCtxCreate", cuda.cuCtxCreate_v2(&contexts[d], 0, first + d));
		for (int b = 0; b < options.blocks; b++) {
			size_t bytes = (size_t)options.block[b] << 20;

			if (options.kind[b])
				memory[d][b] = mapped_make(d, b, first + d, bytes);
			else if (options.managed)
				must("cuMemAllocManaged", cuda.cuMemAllocManaged(&memory[d][b], bytes, 1));
			else
				must("cuMemAlloc", cuda.cuMemAlloc_v2(&memory[d][b], bytes));
		}
		must("fill", devices_over(d, 1));
		if (options.peer && d > 0)
			must("cuCtxEnablePeerAccess", cuda.cuCtxEnablePeerAccess(contexts[0], 0));
	}
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
	must("cuMemAlloc", cuda.cuMemAlloc_v2(&counter, sizeof(ticks)));
	must("fill", cuda.cuMemcpyHtoD_v2(counter, &ticks, sizeof(ticks)));
}

void devices_start(void)
{
	CUmemoryPool pool = NULL;

	calls_bind(options.bind);
	must("cuInit", cuda.cuInit(0));
	must("cuDeviceGetCount", cuda.cuDeviceGetCount(&devices));
	if (devices > MAX_DEVICES)
		die("too many devices", devices);
	if (options.apart && devices) {
		first = number % devices;
		devices = 1;
	}
	fill_devices();
	if (options.kernel_ms)
		must("cuLaunchKernel", devices_launch(options.kernel_ms));
	storm_start(options.storm, contexts[0]);
	if (options.poll)
		poll_start();
	if (options.reduce)
		reduce_start(contexts[0]);
	if (options.casts)
		casts_start(contexts[0]);
	if (options.churn)
		churn_start(options.churn, contexts[0]);
	if (options.pool)
		must("cuMemPoolCreate", cuda.cuMemPoolCreate(&pool, &(CUmemPoolProps){.allocType = 2, .location = {CU_MEM_LOCATION_TYPE_DEVICE, first}})); // CU_MEM_ALLOCATION_TYPE_MANAGED
	if (options.alternate)
		alternate_start(options.alternate, contexts[0], pool);
	graphs_start(options.captures);
}

// devices_drop destroys the contexts, with all that is in them.
void devices_drop(void)
{
	for (int d = 0; d < devices; d++) {
		for (int b = 0; b < options.blocks; b++)
			if (options.kind[b])
				mapped_drop(d, b);
		must("cuCtxDestroy", cuda.cuCtxDestroy_v2(contexts[d]));
	}
	fill_devices();
}

// devices_lend gives another device access to memory, and takes the access away.
CUresult devices_lend(void)
{
	int fd;
	CUresult r = cuda.cuMemGetHandleForAddressRange(&fd, memory[0][0], 1 << 20, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);

	return r == CUDA_SUCCESS && close(fd) ? CUDA_ERROR_UNKNOWN : r;
}

CUdeviceptr devices_block(unsigned block) { return (int)block < options.blocks ? memory[0][block] : 0; }

CUresult devices_handle(void)
{
	CUipcMemHandle handle;

	return cuda.cuIpcGetMemHandle(&handle, memory[0][0]);
}
