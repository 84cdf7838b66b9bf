// Multicast objects of fakeapp, as NCCL makes them (NVLS) and PyTorch's symmetric memory: the second process makes one (the first cannot be killed in a container) and passes it to all others, each adds its device, all bind memory of their own and
// map the object. One process alone has one of all its devices.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK ((size_t)1 << 16) // the last one of the object has a word for each process, which it writes for all

static int boxes[MAX_PROCESSES][2];
static size_t bytes;
static CUmemGenericAllocationHandle object;
static CUdeviceptr all, twin; // where the object is mapped, twice
static struct { CUmemGenericAllocationHandle handle; CUdeviceptr address; } own[MAX_DEVICES];

void team_begin(void)
{
	for (int p = 0; p < options.processes; p++)
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, boxes[p]))
			die("socketpair", errno);
}

// members is how many devices there are in all; member is the number of a device of this process.
static int members(void) { return options.processes > 1 ? options.processes : devices; }
static int member(int device) { return options.processes > 1 ? number : device; }

// swapped is true for members that bind the halves of their memory the other way round, by two calls.
static int swapped(int m) { return m % 2; }
static size_t within(int m, size_t at) { return swapped(m) ? (at + bytes / 2) % bytes : at; }

static uint64_t word(int m, size_t at) { return ((key << 48) ^ ((uint64_t)m << 40) ^ at) * UINT64_C(0x9e3779b97f4a7c15); }

static CUdeviceptr map(CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access[MAX_DEVICES];
	CUdeviceptr at;

	for (int d = 0; d < devices; d++)
		access[d] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, first + d}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	must("cuMemAddressReserve", cuda.cuMemAddressReserve(&at, bytes, 0, 0, 0));
	must("cuMemMap", cuda.cuMemMap(at, bytes, 0, handle, 0));
	must("cuMemSetAccess", cuda.cuMemSetAccess(at, bytes, access, devices));
	return at;
}

static int maker(void) { return options.processes > 1 ? 1 : 0; }

CUresult team_make(void)
{
	CUmulticastObjectProp prop = {.numDevices = members(), .size = (size_t)options.multicast << 20, .handleTypes = options.fabric ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	size_t unit;

	bytes = prop.size;
	if (number != maker())
		return CUDA_SUCCESS;
	must("cuMulticastGetGranularity", cuda.cuMulticastGetGranularity(&unit, &prop, 0));
	if (bytes % unit)
		die("cuMulticastGetGranularity", unit);
	must("cuMulticastCreate", cuda.cuMulticastCreate(&object, &prop));
	for (int p = 0; p < options.processes; p++) {
		int fd;

		if (p == number)
			continue;
		must("cuMemExportToShareableHandle", cuda.cuMemExportToShareableHandle(&fd, object, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		descriptor_send(boxes[p][1], fd);
		close(fd);
	}
	return CUDA_SUCCESS;
}

CUresult team_join(void)
{
	if (number != maker()) {
		int from, fd = descriptor_receive(boxes[number][0], MSG_DONTWAIT, &from);

		must("cuMemImportFromShareableHandle", cuda.cuMemImportFromShareableHandle(&object, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
	}
	must("cuMulticastAddDevice", cuda.cuMulticastAddDevice(object, first));
	for (int p = 0; p < options.processes; p++)
		for (int end = 0; end < 2; end++)
			close(boxes[p][end]);
	return CUDA_SUCCESS;
}

static void bind_own(int device)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, first + device}};
	int m = member(device);

	must("cuMemCreate", cuda.cuMemCreate(&own[device].handle, bytes, &prop, 0));
	own[device].address = map(own[device].handle);
	if (swapped(m)) {
		must("cuMulticastBindAddr", cuda.cuMulticastBindAddr(object, 0, own[device].address + bytes / 2, bytes / 2, 0));
		must("cuMulticastBindMem", cuda.cuMulticastBindMem_v2(object, first + device, bytes / 2, own[device].handle, 0, bytes / 2, 0));
	} else {
		must("cuMulticastBindMem", cuda.cuMulticastBindMem(object, 0, own[device].handle, 0, bytes, 0));
	}
	if (m % 4 == 1)
		must("cuMemRelease", cuda.cuMemRelease(own[device].handle)); // it stays mapped, and bound
}

static void *bind_first(void *unused)
{
	(void)unused;
	bind_own(0);
	return NULL;
}

// team_bind binds the first device in a thread of its own, which waits until the others have been added.
CUresult team_bind(void)
{
	struct timespec pause = {0, 20000000};
	pthread_t thread;

	if (pthread_create(&thread, NULL, bind_first, NULL))
		die("pthread_create", 0);
	nanosleep(&pause, NULL);
	for (int d = 1; d < devices; d++)
		must("cuMulticastAddDevice", cuda.cuMulticastAddDevice(object, first + d));
	for (int d = 1; d < devices; d++)
		bind_own(d);
	pthread_join(thread, NULL);
	all = map(object);
	if (number == 2)
		twin = map(object);
	return CUDA_SUCCESS;
}

// over_own writes the pattern of a device into its memory, but for where processes write words for all.
static int over_own(int device)
{
	static uint64_t words[CHUNK / 8];

	for (size_t at = 0; at < bytes - CHUNK; at += CHUNK) {
		CUresult r;

		for (size_t i = 0; i < CHUNK / 8; i++)
			words[i] = word(member(device), at + 8 * i);
		r = cuda.cuMemcpyHtoD_v2(own[device].address + within(member(device), at), words, CHUNK);
		if (r != CUDA_SUCCESS)
			return r;
	}
	return 0;
}

// sums compares what is read through the object with the sums of all members' patterns.
static int sums(CUdeviceptr from)
{
	static uint64_t got[CHUNK / 8];

	for (size_t at = 0; at < bytes - CHUNK; at += CHUNK) {
		CUresult r = cuda.cuMemcpyDtoH_v2(got, from + at, CHUNK);

		if (r != CUDA_SUCCESS)
			return r;
		for (size_t i = 0; i < CHUNK / 8; i++) {
			uint64_t want = 0;

			for (int m = 0; m < members(); m++)
				want += word(m, at + 8 * i);
			if (got[i] != want)
				return -1;
		}
	}
	return 0;
}

// heard compares the words that all processes have written for all, in a device's own memory.
static int heard(int device)
{
	for (int p = 0; p < options.processes; p++) {
		uint64_t got;
		CUresult r = cuda.cuMemcpyDtoH_v2(&got, own[device].address + within(member(device), bytes - CHUNK + 8 * p), sizeof(got));

		if (r != CUDA_SUCCESS)
			return r;
		if (got != word(p, 0))
			return -1;
	}
	return 0;
}

int team_over(int write)
{
	uint64_t own_word = word(number, 0);
	int r = 0;

	for (int d = 0; d < devices && !r; d++)
		r = write ? over_own(d) : heard(d);
	if (!r && write)
		return cuda.cuMemcpyHtoD_v2(all + bytes - CHUNK + 8 * number, &own_word, sizeof(own_word));
	if (!r)
		r = sums(all);
	return !r && twin ? sums(twin) : r;
}

CUresult team_leave(void)
{
	CUresult r = cuda.cuMemUnmap(all, bytes);

	if (r == CUDA_SUCCESS && twin)
		r = cuda.cuMemUnmap(twin, bytes);
	for (int d = 0; d < devices && r == CUDA_SUCCESS; d++)
		r = cuda.cuMulticastUnbind(object, first + d, 0, bytes);
	return r == CUDA_SUCCESS ? cuda.cuMemRelease(object) : r;
}
