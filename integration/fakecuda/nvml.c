// What the helper asks of NVML. Names, values and types are those of NVIDIA's nvml.h.
#define _GNU_SOURCE
#include "directory.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
typedef struct known *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, UNKNOWN = 999 };

static struct known {
	struct device device;
	int minor, mig;
	char name[64], architecture[16];
} known[MAX_DEVICES];
static int known_count = -1;
static char driver[64] = "580.159.04";

FAKE nvmlReturn_t nvmlInit_v2(void)
{
	const char *path = getenv("FAKECUDA_DEVICES");
	FILE *f = path ? fopen(path, "re") : NULL;
	char line[256];

	if (!f)
		return DRIVER_NOT_LOADED;
	known_count = 0;
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
	fclose(f);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlShutdown(void)
{
	known_count = -1;
	return SUCCESS;
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
	if (known_count < 0)
		return UNINITIALIZED;
	*count = known_count;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
	if (known_count < 0 || index >= (unsigned)known_count)
		return INVALID_ARGUMENT;
	*device = &known[index];
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *uuid, unsigned length)
{
	if (length < UUID_TEXT)
		return INSUFFICIENT_SIZE;
	uuid_text(&d->device.uuid, uuid);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor)
{
	*minor = d->minor;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *name, unsigned length)
{
	snprintf(name, length, "%s", d->name);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	return sscanf(d->architecture, "%d.%d", major, minor) == 2 ? SUCCESS : UNKNOWN;
}

FAKE nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory)
{
	memory->total = d->device.total;
	memory->used = directory_used(&d->device);
	memory->free = memory->total - memory->used;
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof(*pci));
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", 0x10 + d->minor);
	return SUCCESS;
}

FAKE nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *mode, unsigned *pending)
{
	*mode = *pending = d->mig;
	return SUCCESS;
}

// holds adds up the mapped files of a device in a process. In another mount namespace their paths begin elsewhere. A child by vfork has its parent's mappings until it executes a
// program, and no context.
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

		if (strstr(line, part) && sscanf(line, "%lx-%lx", &first, &end) == 2)
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
