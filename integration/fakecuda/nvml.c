// NVML, for the helper and for programs. Names, values and types are those of NVIDIA's nvml.h.
//
// As the real one (580.159.04) it
// - counts initialisations, and has device files open in between (nvml_files.c); a call before or after fails with NVML_ERROR_UNINITIALIZED;
// - loads libcuda.so.1, by which the driver's checkpoint calls know the process: they close its files and open them again, but not those of event sets;
// - is not initialised in the child of a fork, and can be initialised there by the files that were inherited;
// - fails with NVML_ERROR_OPERATING_SYSTEM where something else is in the place of its files, and can never be initialised again when it was shut down so.
#define _GNU_SOURCE
#include "directory.h"
#include "nvml_files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
typedef struct known *nvmlDevice_t;
typedef int *nvmlEventSet_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, OPERATING_SYSTEM = 17, UNKNOWN = 999 };

static struct known {
	struct device device;
	int minor, mig;
	char name[64], architecture[16];
} known[MAX_DEVICES];
static int known_count;
static unsigned initialised;
static int owner; // the process in which it was
static pthread_mutex_t initialising = PTHREAD_MUTEX_INITIALIZER;
static char driver[64] = "580.159.04";
static int listed; // the helper has a list of devices, programs see them

// usable is what a call comes to that needs nothing else.
static nvmlReturn_t usable(void) { return !initialised || owner != getpid() ? UNINITIALIZED : files_work() ? SUCCESS : OPERATING_SYSTEM; }

#define NEED if (usable() != SUCCESS) return usable()

static int compare(const void *a, const void *b) { return ((const struct known *)a)->minor - ((const struct known *)b)->minor; }

// find_visible has the devices that a container sees.
static void find_visible(void)
{
	struct device found[MAX_DEVICES];

	known_count = directory_devices(found, MAX_DEVICES);
	for (int i = 0; i < known_count; i++)
		known[i] = (struct known){.device = found[i], .minor = found[i].minor, .name = "NVIDIA H200", .architecture = "9.0"};
	qsort(known, known_count, sizeof(*known), compare);
}

static void find_listed(FILE *f)
{
	char line[256];

	while (known_count < MAX_DEVICES && fgets(line, sizeof(line), f)) {
		struct known *k = &known[known_count];
		char uuid[64], last[8] = "";
		long long total;

		if (sscanf(line, "driver %63s", driver) == 1)
			continue;
		if (sscanf(line, "%63s %d %63s %15s %lld %7s", uuid, &k->minor, k->name, k->architecture, &total, last) < 5 || !uuid_parse(uuid, &k->device.uuid))
			continue;
		for (char *c = k->name; *c; c++)
			if (*c == '_')
				*c = ' ';
		k->device.total = total;
		k->mig = !strcmp(last, "mig");
		known_count++;
	}
}

// attend has the driver's checkpoint calls know the process, unless FAKENVML_APART says that libcuda.so.1 is not there.
static void attend(void)
{
	void *library = getenv("FAKENVML_APART") ? NULL : dlopen("libcuda.so.1", RTLD_NOW);
	void (*function)(void) = library ? (void (*)(void))dlsym(library, "fakecuda_attend") : NULL;

	if (function)
		function();
}

static nvmlReturn_t begin(void)
{
	const char *path = getenv("FAKECUDA_DEVICES");
	FILE *f = path ? fopen(path, "re") : NULL;

	if (path && !f)
		return DRIVER_NOT_LOADED;
	listed = f != NULL;
	known_count = 0;
	if (f)
		find_listed(f);
	else
		find_visible();
	if (f)
		fclose(f);
	else
		attend();
	owner = getpid();
	return files_open() ? SUCCESS : OPERATING_SYSTEM;
}

FAKE nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
	nvmlReturn_t r;

	(void)flags;
	pthread_mutex_lock(&initialising);
	if (owner != getpid())
		initialised = 0;
	r = initialised ? SUCCESS : begin();
	initialised += r == SUCCESS;
	pthread_mutex_unlock(&initialising);
	return r;
}

FAKE nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

FAKE nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = SUCCESS;

	pthread_mutex_lock(&initialising);
	if (!initialised || owner != getpid())
		r = UNINITIALIZED;
	else if (!--initialised)
		files_close();
	pthread_mutex_unlock(&initialising);
	return r;
}

FAKE const char *nvmlErrorString(nvmlReturn_t r)
{
	return r == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

FAKE nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
	const char *own = getenv("FAKECUDA_DRIVER");

	snprintf(version, length, "%s", own ? own : driver);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
	NEED;
	*count = known_count;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	NEED;
	if (index >= (unsigned)known_count)
		return INVALID_ARGUMENT;
	*device = &known[index];
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *text, nvmlDevice_t *device)
{
	CUuuid uuid;

	NEED;
	for (int i = 0; i < known_count; i++)
		if (uuid_parse(text, &uuid) && !memcmp(&uuid, &known[i].device.uuid, sizeof(uuid))) {
			*device = &known[i];
			return SUCCESS;
		}
	return INVALID_ARGUMENT;
}

FAKE nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *rates)
{
	NEED;
	rates->gpu = rates->memory = d->device.total % 100;
	return SUCCESS;
}

// An event set has a device file of its own.
FAKE nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	NEED;
	*set = malloc(sizeof(**set));
	**set = files_one();
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	NEED;
	close(*set);
	free(set);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length)
{
	NEED;
	if (length < UUID_TEXT)
		return INSUFFICIENT_SIZE;
	uuid_text(&d->device.uuid, uuid);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor)
{
	NEED;
	*minor = d->minor;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length)
{
	NEED;
	snprintf(name, length, "%s", d->name);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	NEED;
	return sscanf(d->architecture, "%d.%d", major, minor) == 2 ? SUCCESS : UNKNOWN;
}

FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory)
{
	NEED;
	memory->total = d->device.total;
	memory->used = listed ? directory_used(&d->device) : 0; // which locks files for a moment: CRIU would meet that
	memory->free = memory->total - memory->used;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	NEED;
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", 0x10 + d->minor);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *mode, unsigned *pending)
{
	NEED;
	*mode = *pending = d->mig;
	return SUCCESS;
}

// holds adds up the mapped files of a device in a process. In another mount namespace their paths begin elsewhere. A child by vfork has its parent's mappings until it executes a
// program, and no context. What was imported from a device without a context there is no use of that device.
static unsigned long long holds(const char *pid, const char *uuid)
{
	unsigned long long sum = 0;
	char path[300], line[4352], part[UUID_TEXT + 8];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%s/maps", pid);
	snprintf(part, sizeof(part), "/%s/mem-", uuid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long first, end;

		if (strstr(line, part) && sscanf(line, "%lx-%lx", &first, &end) == 2 && !strstr(line, " rwxs "))
			sum += end - first;
	}
	if (f)
		fclose(f);
	return sum && directory_thread(atoi(pid)) ? sum : 0;
}

FAKE nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos)
{
	DIR *proc = opendir("/proc");
	char uuid[UUID_TEXT];
	unsigned room = *count;
	struct dirent *e;

	uuid_text(&d->device.uuid, uuid);
	*count = 0;
	while (proc && (e = readdir(proc))) {
		unsigned pid = atoi(e->d_name);
		unsigned long long used = pid ? holds(e->d_name, uuid) : 0;

		if (!used)
			continue;
		if (*count < room)
			infos[*count] = (nvmlProcessInfo_t){pid, used, -1, -1};
		++*count;
	}
	if (proc)
		closedir(proc);
	return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos)
{
	(void)d;
	(void)infos;
	*count = 0;
	return SUCCESS;
}
