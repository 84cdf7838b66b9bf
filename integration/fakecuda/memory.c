#define _GNU_SOURCE
#include "memory.h"
#include "directory.h"
#include "virtual.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct device devices[MAX_DEVICES];
int devices_count;

// An allocation is mapped at address always: a shared mapping of a file of its device, or anonymous memory after a checkpoint.
static struct allocation {
	char *address; // NULL: not used
	size_t bytes, asked; // of its file; that the program wanted
	int device, fd, managed;
	CUcontext context; // that it ends with
	struct marks marks;
	int opened;        // how often by a handle; 0: it is the process's own
	char name[MEMORY_NAME]; // of the file
} allocations[4096];
#define ALLOCATIONS (sizeof(allocations) / sizeof(*allocations))

// end is behind the last allocation that was ever used. Each call searches up to it.
static struct allocation *end = allocations;

// held is a Landlock ruleset, which stands for the real driver's device files: CRIU refuses to dump it, and cryo knows nothing of it. It is open while there are files.
// Where the container has NODE and MAPPED, device nodes too are open and mapped then. As with the real driver a checkpoint takes all of them from this process, and none from its children, which have inherited the nodes.
#define NODE "/dev/nvidia-modeset"
#define MAPPED "/dev/nvidia-uvm-tools"
#define NODES 3
#define MAPPED_BYTES (16 << 12)

static int held = -1;
static int nodes[NODES] = {-1, -1, -1};
static char *mapped[NODES];

static void nodes_open(void)
{
	for (int i = 0; i < NODES && nodes[i] < 0; i++) {
		int fd = open(MAPPED, O_RDWR | O_CLOEXEC);

		nodes[i] = open(NODE, O_RDWR | (i ? O_CLOEXEC : 0));
		if (fd < 0)
			continue;
		mapped[i] = mmap(NULL, MAPPED_BYTES, i ? PROT_READ | PROT_WRITE : PROT_READ, MAP_PRIVATE, fd, 0);
		if (mapped[i] == MAP_FAILED)
			mapped[i] = NULL;
		close(fd);
	}
}

static void nodes_close(void)
{
	for (int i = 0; i < NODES; i++) {
		if (nodes[i] >= 0)
			close(nodes[i]);
		if (mapped[i])
			munmap(mapped[i], MAPPED_BYTES);
		nodes[i] = -1;
		mapped[i] = NULL;
	}
}

int held_open(void)
{
	unsigned long attr = 1; // struct landlock_ruleset_attr of Linux 5.13, see landlock_create_ruleset(2)

	if (held < 0) {
		held = syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
		nodes_open();
	}
	return held >= 0;
}

static void held_close(void)
{
	if (held >= 0)
		close(held);
	held = -1;
	nodes_close();
}

static int compare(const void *a, const void *b)
{
	const struct device *one = a, *other = b;

	return one->minor != other->minor ? one->minor - other->minor : memcmp(&one->uuid, &other->uuid, sizeof(CUuuid));
}

CUresult devices_find(void)
{
	devices_count = directory_devices(devices, MAX_DEVICES);
	if (devices_count == 0)
		return CUDA_ERROR_NO_DEVICE;
	for (int d = 0; d < devices_count; d++)
		devices[d].number = directory_number(&devices[d]);
	qsort(devices, devices_count, sizeof(*devices), compare);
	return CUDA_SUCCESS;
}

CUresult memory_alloc(CUcontext context, int device, size_t bytes, int managed, CUdeviceptr *pointer)
{
	struct allocation *a = allocations;
	CUresult r;

	while (a->address)
		if (++a == allocations + ALLOCATIONS)
			return CUDA_ERROR_OUT_OF_MEMORY;
	if (bytes == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (bytes > SIZE_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (a == end)
		end++;
	a->asked = bytes;
	bytes = (bytes + 4095) & ~(size_t)4095;
	if (!held_open())
		return CUDA_ERROR_OPERATING_SYSTEM;
	r = directory_create(&devices[device], bytes, a->name, &a->fd);
	if (r != CUDA_SUCCESS)
		return r;
	a->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
	if (a->address == MAP_FAILED) {
		a->address = NULL;
		directory_remove(&devices[device], a->name, a->fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	a->bytes = bytes;
	a->device = device;
	a->managed = managed;
	a->context = context;
	a->marks = marks_new();
	a->opened = 0;
	*pointer = (CUdeviceptr)a->address;
	return CUDA_SUCCESS;
}

// drop unmaps an allocation. Only the process that made the memory removes its file.
static void drop(struct allocation *a)
{
	munmap(a->address, a->bytes);
	if (a->opened)
		close(a->fd);
	else
		directory_remove(&devices[a->device], a->name, a->fd);
	a->address = NULL;
}

static struct allocation *begins(CUdeviceptr pointer)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && (CUdeviceptr)a->address == pointer)
			return a;
	return NULL;
}

CUresult memory_free(CUdeviceptr pointer)
{
	struct allocation *a = begins(pointer);

	if (!a || a->opened)
		return CUDA_ERROR_INVALID_VALUE;
	drop(a);
	return CUDA_SUCCESS;
}

// A handle names the file.
struct lent { char mark[8]; CUuuid device; char name[16]; int64_t pid, asked; char rest[8]; };
#define LENT "fakelent"
_Static_assert(sizeof(struct lent) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

CUresult memory_lend(CUdeviceptr base, CUipcMemHandle *handle)
{
	struct allocation *a = begins(base);
	struct lent l = {.device = devices[a ? a->device : 0].uuid, .pid = getpid()};

	if (!a || a->opened)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(l.mark, LENT, sizeof(l.mark));
	snprintf(l.name, sizeof(l.name), "%s", a->name);
	l.asked = a->asked;
	memcpy(handle, &l, sizeof(l));
	return CUDA_SUCCESS;
}

CUresult memory_borrow(CUcontext context, const CUipcMemHandle *handle, CUdeviceptr *pointer)
{
	struct allocation *a = allocations, *place = NULL;
	struct stat st;
	struct lent l;

	memcpy(&l, handle, sizeof(l));
	if (memcmp(l.mark, LENT, sizeof(l.mark)) || memchr(l.name, 0, sizeof(l.name)) == NULL)
		return CUDA_ERROR_INVALID_VALUE;
	if (l.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	for (; a < end; a++) {
		if (!a->address && !place)
			place = a;
		if (a->address && a->opened && a->context == context && !strcmp(a->name, l.name)) {
			a->opened++;
			*pointer = (CUdeviceptr)a->address;
			return CUDA_SUCCESS;
		}
	}
	if (!place && end == allocations + ALLOCATIONS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a = place ? place : end++;
	for (a->device = 0; a->device < devices_count && memcmp(&devices[a->device].uuid, &l.device, sizeof(l.device)); a->device++)
		;
	if (a->device == devices_count)
		return CUDA_ERROR_INVALID_DEVICE;
	a->fd = directory_open(&devices[a->device], l.name);
	if (a->fd < 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (fstat(a->fd, &st) || l.asked > st.st_size || !held_open() ||
	    (a->address = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0)) == MAP_FAILED) {
		a->address = NULL;
		close(a->fd);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	a->bytes = st.st_size;
	a->asked = l.asked;
	a->managed = 0;
	a->context = context;
	a->marks = marks_new();
	a->opened = 1;
	snprintf(a->name, sizeof(a->name), "%s", l.name);
	*pointer = (CUdeviceptr)a->address;
	return CUDA_SUCCESS;
}

CUresult memory_return(CUdeviceptr base)
{
	struct allocation *a = begins(base);

	if (!a || !a->opened)
		return CUDA_ERROR_INVALID_VALUE;
	if (a->opened > 1)
		a->opened--;
	else
		drop(a);
	return CUDA_SUCCESS;
}

int memory_opened(CUdeviceptr base)
{
	struct allocation *a = begins(base);

	return a ? a->opened : 0;
}

int memory_has_opened(void)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && a->opened)
			return 1;
	return 0;
}

void memory_free_all(CUcontext context)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && a->context == context)
			drop(a);
}

size_t memory_bytes(void)
{
	size_t bytes = 0;

	for (struct allocation *a = allocations; a < end; a++)
		bytes += a->address ? a->bytes : 0;
	return bytes;
}

int memory_find(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, CUcontext *context, int *device)
{
	for (struct allocation *a = allocations; a < end; a++) {
		CUdeviceptr start = (CUdeviceptr)a->address;

		if (!a->address || pointer < start || pointer - start >= a->asked)
			continue;
		*base = start;
		*bytes = a->asked;
		*context = a->context;
		*device = a->device;
		return 1;
	}
	return 0;
}

struct marks marks_new(void)
{
	static uint64_t last;

	return (struct marks){.id = ++last, .sync = 1};
}

struct marks *memory_marks(CUdeviceptr pointer)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && pointer >= (CUdeviceptr)a->address && pointer - (CUdeviceptr)a->address < a->asked)
			return &a->marks;
	return NULL;
}

int memory_holds(CUdeviceptr pointer, size_t bytes)
{
	for (struct allocation *a = allocations; a < end; a++) {
		CUdeviceptr start = (CUdeviceptr)a->address;

		if (a->address && pointer >= start && bytes <= a->asked && pointer - start <= a->asked - bytes)
			return 1;
	}
	return 0;
}

int memory_managed(CUdeviceptr pointer, size_t bytes)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && a->managed && pointer >= (CUdeviceptr)a->address && bytes <= a->asked && pointer - (CUdeviceptr)a->address <= a->asked - bytes)
			return 1;
	return 0;
}

int memory_is_managed(void)
{
	for (struct allocation *a = allocations; a < end; a++)
		if (a->address && a->managed)
			return 1;
	return 0;
}

// move copies an allocation into a new mapping and puts that in its place.
static CUresult move(struct allocation *a, int flags, int fd)
{
	char *copy = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (copy == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(copy, a->address, a->bytes);
	if (mremap(copy, a->bytes, a->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, a->address) == MAP_FAILED) {
		munmap(copy, a->bytes);
		return CUDA_ERROR_OPERATING_SYSTEM;
	}
	return CUDA_SUCCESS;
}

CUresult memory_save(void)
{
	for (struct allocation *a = allocations; a < end; a++) {
		CUresult r;

		if (!a->address)
			continue;
		r = move(a, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		if (r != CUDA_SUCCESS)
			return r;
		if (a->opened)
			close(a->fd);
		else
			directory_remove(&devices[a->device], a->name, a->fd);
		a->fd = -1;
	}
	held_close();
	nvml_saved(1);
	return CUDA_SUCCESS;
}

// take sets where each device goes, known by the number it had; false unless the pairs are one to one over all of them.
static int take(const CUcheckpointGpuPair *pairs, unsigned count, struct device moved[MAX_DEVICES])
{
	memcpy(moved, devices, sizeof(devices));
	if (count == 0)
		return 1;
	if (count != (unsigned)devices_count)
		return 0;
	for (unsigned i = 0; i < count; i++) {
		int known = 0;

		for (unsigned j = 0; j < i; j++)
			if (!memcmp(&pairs[i].oldUuid, &pairs[j].oldUuid, sizeof(CUuuid)) ||
			    !memcmp(&pairs[i].newUuid, &pairs[j].newUuid, sizeof(CUuuid)))
				return 0;
		for (int d = 0; d < devices_count; d++)
			if (!memcmp(&devices[d].uuid, &pairs[i].oldUuid, sizeof(CUuuid))) {
				moved[d].uuid = pairs[i].newUuid;
				known = 1;
			}
		if (!known)
			return 0;
	}
	return 1;
}

CUresult memory_load(const CUcheckpointGpuPair *pairs, unsigned count)
{
	static struct { char name[MEMORY_NAME]; int fd; } made[ALLOCATIONS];
	struct device moved[MAX_DEVICES];
	CUresult r = CUDA_SUCCESS;
	size_t i;

	if (!take(pairs, count, moved))
		return CUDA_ERROR_INVALID_VALUE;
	for (int d = 0; d < devices_count; d++)
		if (!directory_total(&moved[d]))
			return CUDA_ERROR_INVALID_DEVICE;
	// All files first: where one cannot be made, nothing has changed.
	for (i = 0; i < ALLOCATIONS && r == CUDA_SUCCESS; i++)
		if (allocations[i].address)
			r = directory_create(&moved[allocations[i].device], allocations[i].bytes, made[i].name, &made[i].fd);
	if (r == CUDA_SUCCESS)
		r = virtual_make(moved);
	if (r == CUDA_SUCCESS && !held_open()) {
		r = CUDA_ERROR_OPERATING_SYSTEM;
		virtual_drop(moved);
	}
	if (r != CUDA_SUCCESS) {
		while (i-- > 0)
			if (allocations[i].address && made[i].fd >= 0)
				directory_remove(&moved[allocations[i].device], made[i].name, made[i].fd);
		return r;
	}
	for (i = 0; i < ALLOCATIONS && r == CUDA_SUCCESS; i++) {
		struct allocation *a = &allocations[i];

		if (!a->address)
			continue;
		r = move(a, MAP_SHARED, made[i].fd);
		a->fd = made[i].fd;
		memcpy(a->name, made[i].name, sizeof(a->name));
	}
	memcpy(devices, moved, sizeof(devices));
	nvml_saved(0);
	return r == CUDA_SUCCESS ? virtual_load() : r;
}

void memory_forget(void)
{
	for (struct allocation *a = allocations; a < end; a++) {
		if (!a->address)
			continue;
		munmap(a->address, a->bytes);
		if (a->fd >= 0)
			close(a->fd);
		a->address = NULL;
	}
	if (held >= 0)
		close(held);
	held = -1;
	for (int i = 0; i < NODES; i++) { // they stay open and mapped
		nodes[i] = -1;
		mapped[i] = NULL;
	}
	devices_count = 0;
}
