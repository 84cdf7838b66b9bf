// Handles of NVML. They end when it is shut down (nvml.h); the program's go on. A device is known by its index, so that a program that was restored with another GPU finds that one.
#define _GNU_SOURCE
#include "nvml.h"

#include <stddef.h>

#define MOST 1024

// entry is a handle. NVML gives the same ones again perhaps, or gives one to another device.
static struct entry {
	void *shown; // to the program; NULL: not used
	void *real;  // NVML's; NULL: there is none any more
	int device;  // else it ends with NVML
	unsigned index;
} entries[MOST];
static size_t used; // of entries, from the first

// makers are the functions that return a handle, and the number of the argument that points to it.
static const struct { unsigned number, out; int device; } makers[] = {
	{NVML_nvmlDeviceGetHandleByIndex, 1, 1}, {NVML_nvmlDeviceGetHandleByIndex_v2, 1, 1}, {NVML_nvmlDeviceGetHandleBySerial, 1, 1},
	{NVML_nvmlDeviceGetHandleByUUID, 1, 1}, {NVML_nvmlDeviceGetHandleByUUIDV, 1, 1}, {NVML_nvmlDeviceGetHandleByPciBusId, 1, 1},
	{NVML_nvmlDeviceGetHandleByPciBusId_v2, 1, 1}, {NVML_nvmlDeviceGetDeviceHandleFromMigDeviceHandle, 1, 1},
	{NVML_nvmlEventSetWait, 1, 1}, {NVML_nvmlEventSetWait_v2, 1, 1}, // nvmlEventData_t begins with the device
	{NVML_nvmlEventSetCreate, 0, 0}, {NVML_nvmlUnitGetHandleByIndex, 1, 0}, {NVML_nvmlDeviceGetMigDeviceHandleByIndex, 2, 0},
	{NVML_nvmlDeviceCreateGpuInstance, 2, 0}, {NVML_nvmlDeviceCreateGpuInstanceWithPlacement, 3, 0}, {NVML_nvmlDeviceGetGpuInstanceById, 2, 0},
	{NVML_nvmlGpuInstanceCreateComputeInstance, 2, 0}, {NVML_nvmlGpuInstanceCreateComputeInstanceWithPlacement, 3, 0},
	{NVML_nvmlGpuInstanceGetComputeInstanceById, 2, 0},
};

// barred are functions that return handles in other ways, or functions without names.
static const unsigned barred[] = {
	NVML_nvmlInternalGetExportTable, NVML_nvmlSystemEventSetCreate, NVML_nvmlSystemGetTopologyGpuSet, NVML_nvmlUnitGetDevices, NVML_nvmlDeviceGetTopologyNearestGpus,
	NVML_nvmlDeviceGetGpuInstances, NVML_nvmlGpuInstanceGetComputeInstances,
};

static struct entry *by_shown(void *handle)
{
	for (struct entry *e = entries; e < entries + used && handle; e++)
		if (e->shown == handle)
			return e;
	return NULL;
}

static struct entry *by_real(void *handle)
{
	for (struct entry *e = entries; e < entries + used; e++)
		if (e->shown && e->real == handle)
			return e;
	return NULL;
}

int handles_translate(long argument[NVML_ARGUMENTS])
{
	for (int i = 0; i < 3; i++) { // no function has one after these
		struct entry *e = by_shown((void *)argument[i]);

		if (e && !e->real)
			return 0;
		if (e)
			argument[i] = (long)e->real;
	}
	return 1;
}

// add takes a handle down, and gives the program the same one unless it has that of another device.
static void *add(void *handle, int device)
{
	struct entry *e = entries;
	unsigned index = 0;

	while (e < entries + used && e->shown)
		e++;
	if (e == entries + MOST) {
		nvml_unable();
		return handle;
	}
	if (device) // of a part of a GPU there is none
		device = nvml_direct(NVML_nvmlDeviceGetIndex, (const long[NVML_ARGUMENTS]){(long)handle, (long)&index}) == NVML_SUCCESS;
	if (e == entries + used)
		used++;
	*e = (struct entry){.shown = by_shown(handle) ? (void *)e : handle, .real = handle, .device = device, .index = index};
	return e->shown;
}

void handles_made(unsigned number, const long argument[NVML_ARGUMENTS])
{
	for (size_t i = 0; i < sizeof(barred) / sizeof(*barred); i++)
		if (barred[i] == number)
			nvml_unable();
	if (number == NVML_nvmlEventSetFree) {
		struct entry *e = by_shown((void *)argument[0]);

		if (e)
			e->shown = NULL;
	}
	for (size_t i = 0; i < sizeof(makers) / sizeof(*makers); i++) {
		void **out = (void **)argument[makers[i].out];
		struct entry *e;

		if (makers[i].number != number || !out || !*out)
			continue;
		e = by_real(*out);
		*out = e ? e->shown : add(*out, makers[i].device);
	}
}

int handles_freed(unsigned number, const long argument[NVML_ARGUMENTS])
{
	struct entry *e = number == NVML_nvmlEventSetFree ? by_shown((void *)argument[0]) : NULL;

	if (!e || e->real)
		return 0;
	e->shown = NULL;
	return 1;
}

int handles_renew(void)
{
	int all = 1;

	for (struct entry *e = entries; e < entries + used; e++) {
		void *handle = NULL;

		if (e->shown && e->device)
			nvml_direct(NVML_nvmlDeviceGetHandleByIndex_v2, (const long[NVML_ARGUMENTS]){e->index, (long)&handle});
		e->real = handle;
		all &= handle || !e->shown || !e->device;
	}
	return all;
}

void handles_forget(void) { used = 0; }
