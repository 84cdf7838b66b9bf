// Multicast objects. Source: NVIDIA, CUDA driver API, Multicast Object Management; where it is silent, ai-dynamo/snapshot, docs/reference/cuinterpose.md (drivers 595 and 615), and NVIDIA/nccl, pull
// request 2340. None was tried on hardware by this project.
//
// An object has a team of so many devices, each added once, by any process that has the object, and for as long as the object exists. cuMulticastBind* and cuMemMap wait until all are added. What is
// bound is memory of a device of the team, and neither overlaps nor passes the object's end. cuMulticastUnbind takes what one or several calls have bound. A process with an object, bound or not,
// hangs in its checkpoint. That cuMemGetAllocationPropertiesFromHandle refuses an object, and cuMulticastAddDevice a device that was added, is assumed.
//
// A kernel's multimem instructions are copies here: one to a multicast address writes to all that is bound there, and one from it returns the sums of its 64-bit words.
#define _GNU_SOURCE
#include "handles.h"
#include "driver.h"
#include "orders.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#define TEAM_NAME "fakecuda-multicast"
#define BINDINGS 256

// team is an object's state, in a file that all its processes have mapped. Who changes or reads it has locked its file.
struct team {
	unsigned devices, added, bound;
	size_t bytes;
	CUuuid device[MAX_DEVICES]; // the first of them are added
	struct bound { CUuuid device; size_t at, bytes, offset; char name[MEMORY_NAME]; } bindings[BINDINGS];
};

static struct handle *object(CUmemGenericAllocationHandle value)
{
	struct handle *h = handle_of(value);

	return h && h->team && !h->released ? h : NULL;
}

static void team_lock(const struct handle *h) { flock(h->fd, LOCK_EX); }
static void team_unlock(const struct handle *h) { flock(h->fd, LOCK_UN); }

// take_over maps the team of a descriptor, which it takes over, for a handle.
static CUresult take_over(struct handle *h, int fd, int imported, int types)
{
	struct team *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (t == MAP_FAILED) {
		close(fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	*h = (struct handle){.bytes = t->bytes, .fd = fd, .imported = imported, .team = t, .prop = {.requestedHandleTypes = types}};
	return CUDA_SUCCESS;
}

void team_drop(struct handle *h)
{
	munmap(h->team, sizeof(*h->team));
	close(h->fd);
}

int team_is(int fd)
{
	char link[64], path[PATH_MAX];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	return strstr(path, "/memfd:" TEAM_NAME) != NULL;
}

// The lock of a descriptor of memory says that it is held; that of a team is taken for a moment.
int team_again(int fd)
{
	int again = directory_again(fd);

	if (again >= 0)
		flock(again, LOCK_UN);
	return again;
}

CUresult team_import(struct handle *h, int fd)
{
	int own = team_again(fd);

	return own < 0 ? CUDA_ERROR_OPERATING_SYSTEM : take_over(h, own, 1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

// Between calls that wait for others, the rest of the process goes on.
CUresult team_wait(CUmemGenericAllocationHandle value, CUresult r)
{
	struct handle *h = handle_of(value);

	while (r == CUDA_SUCCESS && h && h->team && __atomic_load_n(&h->team->added, __ATOMIC_ACQUIRE) < h->team->devices) {
		leave(r);
		sleep_ms(1);
		r = enter();
		h = handle_of(value);
	}
	return r;
}

CUresult cuMulticastGetGranularity(size_t *bytes, const CUmulticastObjectProp *prop, int option)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (!bytes || !prop || option < 0 || option > 1))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		*bytes = GRANULARITY;
	return leave(r);
}

CUresult cuMulticastCreate(CUmemGenericAllocationHandle *value, const CUmulticastObjectProp *prop)
{
	CUresult r = orders_own("cuMulticastCreate");
	struct handle *h;
	int fd;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = handle_new();
	if (r == CUDA_SUCCESS && (!value || !prop || !prop->numDevices || prop->numDevices > MAX_DEVICES || !prop->size || prop->size % GRANULARITY || prop->flags))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && prop->handleTypes & ~(unsigned long long)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && prop->handleTypes != CU_MEM_HANDLE_TYPE_FABRIC)
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (r == CUDA_SUCCESS && !h)
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r == CUDA_SUCCESS && !held_open())
		r = CUDA_ERROR_OPERATING_SYSTEM;
	if (r == CUDA_SUCCESS) {
		struct team t = {.devices = prop->numDevices, .bytes = prop->size};

		fd = memfd_create(TEAM_NAME, MFD_CLOEXEC);
		if (fd < 0 || write(fd, &t, sizeof(t)) != sizeof(t))
			r = CUDA_ERROR_OPERATING_SYSTEM;
		else
			r = take_over(h, fd, 0, prop->handleTypes);
	}
	if (r == CUDA_SUCCESS)
		*value = value_of(h);
	return leave(r);
}

// in_team is true for a device that was added.
static int in_team(const struct team *t, const CUuuid *device)
{
	for (unsigned i = 0; i < t->added; i++)
		if (!memcmp(&t->device[i], device, sizeof(*device)))
			return 1;
	return 0;
}

CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle value, CUdevice device)
{
	CUresult r = orders_on("cuMulticastAddDevice", device >= 0 && device < devices_count ? &devices[device].uuid : NULL);
	struct handle *h;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = object(value);
	if (r == CUDA_SUCCESS && !h)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && (device < 0 || device >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r != CUDA_SUCCESS)
		return leave(r);
	team_lock(h);
	if (h->team->added == h->team->devices || in_team(h->team, &devices[device].uuid)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		h->team->device[h->team->added] = devices[device].uuid;
		__atomic_add_fetch(&h->team->added, 1, __ATOMIC_RELEASE);
	}
	team_unlock(h);
	return leave(r);
}

// fits is true where a binding is possible beside those there are.
static int fits(const struct team *t, const struct bound *b, size_t memory)
{
	if (!b->bytes || b->at % GRANULARITY || b->bytes % GRANULARITY || b->offset % GRANULARITY || b->at > t->bytes || b->bytes > t->bytes - b->at || b->offset > memory ||
	    b->bytes > memory - b->offset || t->bound == BINDINGS)
		return 0;
	for (unsigned i = 0; i < t->bound; i++)
		if (!memcmp(&t->bindings[i].device, &b->device, sizeof(b->device)) && t->bindings[i].at < b->at + b->bytes && b->at < t->bindings[i].at + t->bindings[i].bytes)
			return 0;
	return 1;
}

// bind is for one device, or with -1 for that of the memory. It is called between enter and leave, and waits for the team.
static CUresult bind(CUmemGenericAllocationHandle value, CUdevice device, size_t at, struct handle *memory, size_t offset, size_t bytes, unsigned long long flags)
{
	struct bound b = {.at = at, .bytes = bytes, .offset = offset};
	struct handle *h = object(value);
	CUresult r;

	if (!h || !memory || memory->team || memory->host || flags || device >= devices_count)
		return CUDA_ERROR_INVALID_VALUE;
	b.device = devices[device < 0 ? memory->device : device].uuid;
	if (!directory_name(memory->fd, b.name))
		return CUDA_ERROR_OPERATING_SYSTEM;
	r = team_wait(value, CUDA_SUCCESS);
	h = object(value);
	if (r != CUDA_SUCCESS || !h)
		return r != CUDA_SUCCESS ? r : CUDA_ERROR_INVALID_VALUE;
	team_lock(h);
	if (!in_team(h->team, &b.device) || (device >= 0 && device != memory->device))
		r = CUDA_ERROR_INVALID_DEVICE;
	else if (!fits(h->team, &b, memory->bytes))
		r = CUDA_ERROR_INVALID_VALUE;
	else
		h->team->bindings[h->team->bound++] = b;
	team_unlock(h);
	return r;
}

CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle value, CUdevice device, size_t at, CUmemGenericAllocationHandle memory, size_t offset, size_t bytes, unsigned long long flags)
{
	CUresult r = order_of("cuMulticastBindMem", memory);

	if (r == CUDA_SUCCESS && device < 0)
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	return leave(r == CUDA_SUCCESS ? bind(value, device, at, handle_of(memory), offset, bytes, flags) : r);
}

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle value, size_t at, CUmemGenericAllocationHandle memory, size_t offset, size_t bytes, unsigned long long flags)
{
	CUresult r = order_of("cuMulticastBindMem", memory);

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	return leave(r == CUDA_SUCCESS ? bind(value, -1, at, handle_of(memory), offset, bytes, flags) : r);
}

static CUresult bind_address(CUmemGenericAllocationHandle value, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	CUresult r = order_at("cuMulticastBindAddr", pointer);
	struct mapping *m;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	m = r == CUDA_SUCCESS ? inside(pointer, 1) : NULL;
	if (r == CUDA_SUCCESS && (!m || pointer - (CUdeviceptr)m->address + bytes > m->bytes))
		r = CUDA_ERROR_INVALID_VALUE;
	return leave(r == CUDA_SUCCESS ? bind(value, device, at, m->handle, m->offset + (pointer - (CUdeviceptr)m->address), bytes, flags) : r);
}

CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle value, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	return bind_address(value, -1, at, pointer, bytes, flags);
}

CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle value, CUdevice device, size_t at, CUdeviceptr pointer, size_t bytes, unsigned long long flags)
{
	return device < 0 ? CUDA_ERROR_INVALID_DEVICE : bind_address(value, device, at, pointer, bytes, flags);
}

CUresult cuMulticastUnbind(CUmemGenericAllocationHandle value, CUdevice device, size_t at, size_t bytes)
{
	CUresult r = orders_on("cuMulticastUnbind", device >= 0 && device < devices_count ? &devices[device].uuid : NULL);
	struct handle *h;
	size_t found = 0;

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	h = object(value);
	if (r == CUDA_SUCCESS && (!h || device < 0 || device >= devices_count))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r != CUDA_SUCCESS)
		return leave(r);
	team_lock(h);
	for (unsigned i = 0; i < h->team->bound;) {
		struct bound *b = &h->team->bindings[i];

		if (memcmp(&b->device, &devices[device].uuid, sizeof(b->device)) || b->at < at || b->at + b->bytes > at + bytes) {
			i++;
			continue;
		}
		found += b->bytes;
		*b = h->team->bindings[--h->team->bound];
	}
	team_unlock(h);
	return leave(found == bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

int team_at(CUdeviceptr pointer)
{
	struct mapping *m = inside(pointer, 1);

	return m && m->handle->team;
}

int team_any(void)
{
	for (struct handle *h = handles; h < handles + MOST; h++)
		if (h->bytes && h->team)
			return 1;
	return 0;
}

// opened opens the file of what is bound; -1: it is gone.
static int opened(const struct bound *b)
{
	struct device d = {.uuid = b->device};

	return directory_open(&d, b->name);
}

int team_copy(CUdeviceptr pointer, size_t bytes, void *to, const void *from)
{
	struct mapping *m = inside(pointer, 1);
	size_t start;

	if (!m || !m->handle->team)
		return 0;
	start = pointer - (CUdeviceptr)m->address;
	if (to)
		memset(to, 0, bytes);
	team_lock(m->handle);
	for (unsigned i = 0; i < m->handle->team->bound; i++) {
		const struct bound *b = &m->handle->team->bindings[i];
		size_t first = b->at > start ? b->at : start, end = b->at + b->bytes < start + bytes ? b->at + b->bytes : start + bytes;
		uint64_t *words;
		int fd;

		if (first >= end || (fd = opened(b)) < 0)
			continue;
		words = malloc(end - first);
		if (from && pwrite(fd, (const char *)from + (first - start), end - first, b->offset + (first - b->at)) < 0)
			abort();
		if (to && words && pread(fd, words, end - first, b->offset + (first - b->at)) == (ssize_t)(end - first))
			for (size_t w = 0; w < (end - first) / sizeof(*words); w++)
				((uint64_t *)((char *)to + (first - start)))[w] += words[w];
		free(words);
		close(fd);
	}
	team_unlock(m->handle);
	return 1;
}
