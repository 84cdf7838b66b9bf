// Memory that processes of fakeapp share by descriptors, as ranks of NCCL do: each has a block, and all others import it.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// SLOTS are at the end of each block: one for each process, which writes the key there.
#define SLOTS ((size_t)1 << 16)
#define CHUNK ((size_t)1 << 16)

static struct shared { CUmemGenericAllocationHandle handle; CUdeviceptr address; } blocks[MAX_PROCESSES]; // own, and others'
static int boxes[MAX_PROCESSES][2]; // where a process gets descriptors; and all others send them
static size_t bytes;

void exchange_begin(void)
{
	for (int p = 0; p < options.processes; p++)
		if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, boxes[p]))
			die("socketpair", errno);
}

static void map(struct shared *s)
{
	CUmemAccessDesc access[] = {
		{{CU_MEM_LOCATION_TYPE_DEVICE, first}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
		{{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE},
	};

	must("cuMemAddressReserve", cuda.cuMemAddressReserve(&s->address, bytes, 0, 0, 0));
	must("cuMemMap", cuda.cuMemMap(s->address, bytes, 0, s->handle, 0));
	must("cuMemSetAccess", cuda.cuMemSetAccess(s->address, bytes, access, options.share_host ? 2 : 1));
}

void descriptor_send(int socket, int fd)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec part = {&number, sizeof(number)};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};

	memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
	if (sendmsg(socket, &m, 0) < 0)
		die("sendmsg", errno);
}

int descriptor_receive(int socket, int flags, int *from)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control;
	struct iovec part = {from, sizeof(*from)};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	int fd;

	if (recvmsg(socket, &m, flags) != sizeof(*from))
		die("recvmsg", errno);
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

CUresult exchange_offer(void)
{
	CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, .location = {CU_MEM_LOCATION_TYPE_DEVICE, first}};

	bytes = (size_t)options.share << 20;
	if (options.share_host)
		prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
	must("cuMemCreate", cuda.cuMemCreate(&blocks[number].handle, bytes, &prop, 0));
	map(&blocks[number]);
	for (int p = 0; p < options.processes; p++) {
		int fd;

		if (p == number)
			continue;
		must("cuMemExportToShareableHandle", cuda.cuMemExportToShareableHandle(&fd, blocks[number].handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		descriptor_send(boxes[p][1], fd);
		close(fd);
	}
	return 0;
}

// Handles of odd processes are released: what is mapped stays.
CUresult exchange_accept(void)
{
	for (int i = 1; i < options.processes; i++) {
		int from, fd = descriptor_receive(boxes[number][0], MSG_DONTWAIT, &from);

		must("cuMemImportFromShareableHandle", cuda.cuMemImportFromShareableHandle(&blocks[from].handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
		close(fd);
		map(&blocks[from]);
		if (number % 2)
			must("cuMemRelease", cuda.cuMemRelease(blocks[from].handle));
	}
	for (int p = 0; p < options.processes; p++)
		for (int end = 0; end < 2; end++)
			close(boxes[p][end]);
	return 0;
}

// over writes the pattern of one process into its block, or compares.
static int over(int process, int write)
{
	static uint64_t want[CHUNK / 8], got[CHUNK / 8];

	for (size_t at = 0; at < bytes - SLOTS; at += CHUNK) {
		CUresult r;

		for (size_t i = 0; i < CHUNK / 8; i++)
			want[i] = (key << 48 ^ (uint64_t)process << 40 ^ (at / 8 + i)) * UINT64_C(0x9e3779b97f4a7c15);
		r = write ? cuda.cuMemcpyHtoD_v2(blocks[process].address + at, want, CHUNK) : cuda.cuMemcpyDtoH_v2(got, blocks[process].address + at, CHUNK);
		if (r != CUDA_SUCCESS)
			return r;
		if (!write && memcmp(got, want, CHUNK))
			return -1;
	}
	return 0;
}

int exchange_over(int write)
{
	int r = write ? over(number, 1) : 0;

	for (int p = 0; p < options.processes && !r; p++) {
		CUdeviceptr slot = blocks[p].address + bytes - SLOTS + 8 * number, own = blocks[number].address + bytes - SLOTS + 8 * p;
		uint64_t got;

		if (write) {
			r = p == number ? 0 : cuda.cuMemcpyHtoD_v2(slot, &key, sizeof(key));
			continue;
		}
		r = over(p, 0);
		if (!r && p != number && !(r = cuda.cuMemcpyDtoH_v2(&got, own, sizeof(got))) && got != key)
			r = -1;
	}
	return r;
}
