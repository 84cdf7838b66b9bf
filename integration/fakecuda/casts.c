// A thread in each process of fakeapp that makes multicast objects with those of all other processes and gives them up, one after the other, as ranks do that make communicators.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BYTES ((size_t)2 << 20)

static int boxes[MAX_PROCESSES][2];
static uint64_t *reached; // by each process: how many barriers
static CUcontext context;
static CUdeviceptr all, one; // reserved
static unsigned long long rounds;

unsigned long long casts_rounds(void) { return __atomic_load_n(&rounds, __ATOMIC_RELAXED); }

void casts_begin(void)
{
	reached = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (reached == MAP_FAILED)
		die("mmap", errno);
	for (int p = 0; p < options.processes; p++)
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, boxes[p]))
			die("socketpair", errno);
}

static void doze(void) { nanosleep(&(struct timespec){0, 1000000}, NULL); }

// barrier waits for all processes.
static void barrier(void)
{
	uint64_t want = __atomic_add_fetch(&reached[number], 1, __ATOMIC_ACQ_REL);

	for (int p = 0; p < options.processes; p++)
		while (__atomic_load_n(&reached[p], __ATOMIC_ACQUIRE) < want)
			doze();
}

static CUmemGenericAllocationHandle object(void)
{
	CUmulticastObjectProp prop = {.numDevices = options.processes, .size = BYTES, .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
	CUmemGenericAllocationHandle made;
	int from, fd;

	if (number) {
		fd = descriptor_receive(boxes[number][0], 0, &from);
		must("cuMemImportFromShareableHandle", cuda.cuMemImportFromShareableHandle(&made, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		return made;
	}
	must("cuMulticastCreate", cuda.cuMulticastCreate(&made, &prop));
	for (int p = 1; p < options.processes; p++) {
		must("cuMemExportToShareableHandle", cuda.cuMemExportToShareableHandle(&fd, made, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		descriptor_send(boxes[p][1], fd);
		close(fd);
	}
	return made;
}

static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, first}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

	must("cuMemMap", cuda.cuMemMap(at, BYTES, 0, handle, 0));
	must("cuMemSetAccess", cuda.cuMemSetAccess(at, BYTES, &access, 1));
}

static void cast(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, first}};
	CUmemGenericAllocationHandle team = object(), memory;
	uint64_t word = rounds + 1, got;

	must("cuMulticastAddDevice", cuda.cuMulticastAddDevice(team, first));
	must("cuMemCreate", cuda.cuMemCreate(&memory, BYTES, &prop, 0));
	map(one, memory);
	must("cuMulticastBindMem", cuda.cuMulticastBindMem(team, 0, memory, 0, BYTES, 0));
	map(all, team);
	barrier();
	must("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(all + 8 * number, &word, sizeof(word)));
	barrier();
	for (int p = 0; p < options.processes; p++) {
		must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(&got, one + 8 * p, sizeof(got)));
		if (got != word)
			die("what another process has cast has not arrived", p);
	}
	barrier();
	must("cuMemUnmap", cuda.cuMemUnmap(all, BYTES));
	must("cuMulticastUnbind", cuda.cuMulticastUnbind(team, first, 0, BYTES));
	must("cuMemRelease", cuda.cuMemRelease(team));
	must("cuMemUnmap", cuda.cuMemUnmap(one, BYTES));
	must("cuMemRelease", cuda.cuMemRelease(memory));
	__atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
}

static void *casts(void *unused)
{
	(void)unused;
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(context));
	must("cuMemAddressReserve", cuda.cuMemAddressReserve(&all, BYTES, 0, 0, 0));
	must("cuMemAddressReserve", cuda.cuMemAddressReserve(&one, BYTES, 0, 0, 0));
	for (;; doze())
		cast();
	return NULL;
}

void casts_start(CUcontext of)
{
	pthread_t thread;

	context = of;
	if (pthread_create(&thread, NULL, casts, NULL))
		die("pthread_create", 0);
}
