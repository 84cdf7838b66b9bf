// A process that watches devices by NVML, as a monitor or a launcher does: threads ask all the time by a handle that they keep.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { void *device; unsigned long long type, data; unsigned gpu, compute; } event;

// WATCH_CALLS are bound by dlsym, or by the linker ("direct"), which finds them in cryo's library.
#define WATCH_CALLS(X) \
	X(nvmlInit_v2, (void)) X(nvmlShutdown, (void)) X(nvmlDeviceGetCount_v2, (unsigned *)) X(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **)) X(nvmlDeviceGetUUID, (void *, char *, unsigned)) \
	X(nvmlDeviceGetHandleByUUID, (const char *, void **)) X(nvmlDeviceGetMemoryInfo, (void *, memory *)) X(nvmlDeviceGetUtilizationRates, (void *, unsigned[2])) \
	X(nvmlEventSetCreate, (void **)) X(nvmlDeviceRegisterEvents, (void *, unsigned long long, void *)) X(nvmlEventSetWait_v2, (void *, event *, unsigned)) X(nvmlEventSetFree, (void *))

#define DECLARE(name, arguments) extern __attribute__((weak)) int name arguments;
WATCH_CALLS(DECLARE)
#undef DECLARE

static struct {
#define POINTER(name, arguments) int (*name) arguments;
	WATCH_CALLS(POINTER)
#undef POINTER
} nvml;

static int (*newest)(void *, unsigned *); // where it is bound by dlsym
static int (*nearest)(void *, int, unsigned *, void **); // returns handles in an array

enum { UNINITIALIZED = 1, TIMEOUT = 10 };

static void *handle, *set;
static unsigned long long total;

// seen is what the process and each of its children have seen.
#define MOST 8
static struct seen { unsigned long long queries; int failed, events_ended; } *seen, *own;

static void check(const char *what, int r)
{
	if (r)
		die(what, r);
}

static int query(void)
{
	memory m = {0};
	char uuid[48];
	unsigned rates[2];
	void *same;
	int r = nvml.nvmlDeviceGetMemoryInfo(handle, &m);

	if (!r && m.total != total)
		r = -1;
	if (!r)
		r = nvml.nvmlDeviceGetUtilizationRates(handle, rates);
	if (!r && newest)
		r = newest(handle, rates);
	if (!r)
		r = nvml.nvmlDeviceGetUUID(handle, uuid, sizeof(uuid));
	if (!r)
		r = nvml.nvmlDeviceGetHandleByUUID(uuid, &same);
	if (!r && same != handle)
		r = -2;
	return r;
}

static void *watch(void *unused)
{
	(void)unused;
	for (;; usleep(2000)) {
		int r = query();

		if (r)
			own->failed = r;
		__atomic_add_fetch(&own->queries, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void listen(void)
{
	check("nvmlEventSetCreate", nvml.nvmlEventSetCreate(&set));
	check("nvmlDeviceRegisterEvents", nvml.nvmlDeviceRegisterEvents(handle, 1, set));
}

// wait_events waits for events as a health check does, and begins anew where NVML has forgotten what it waits for.
static void *wait_events(void *unused)
{
	event e;

	(void)unused;
	for (;;) {
		int r = nvml.nvmlEventSetWait_v2(set, &e, 60000);

		if (r == UNINITIALIZED) {
			own->events_ended++;
			check("nvmlEventSetFree", nvml.nvmlEventSetFree(set));
			listen();
		} else if (r != TIMEOUT || e.device != handle) {
			own->failed = r ? r : -3;
		}
	}
	return NULL;
}

static void bind(void)
{
	int direct = !strcmp(options.nvml, "direct");
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (!library)
		die("dlopen libnvidia-ml.so.1", 0);
#define BIND(name, arguments) nvml.name = direct ? name : (int (*) arguments)dlsym(library, #name);
	WATCH_CALLS(BIND)
#undef BIND
	if (!direct)
		newest = (int (*)(void *, unsigned *))dlsym(library, "nvmlDeviceGetNewest");
	if (dlsym(library, "nvmlNoSuchFunction") || dlsym(library, "nvmlDeviceGetMaxClockInfo"))
		die("NVML has functions that it has not", 0);
	if (!strcmp(options.nvml, "topology"))
		nearest = (int (*)(void *, int, unsigned *, void **))dlsym(library, "nvmlDeviceGetTopologyNearestGpus");
}

static void threads(void)
{
	pthread_t thread;

	for (int i = 0; i < options.watchers; i++)
		if (pthread_create(&thread, NULL, watch, NULL))
			die("pthread_create", 0);
}

// start_children forks processes that ask as well, by NVML as it was initialised by their parent.
static void start_children(void)
{
	for (int i = 1; i <= options.watching_children && i < MOST; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			own = seen + i;
			threads();
			for (;;)
				pause();
		}
}

void watch_start(void)
{
	memory m;
	unsigned count;
	pthread_t thread;

	own = seen = mmap(NULL, MOST * sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	bind();
	if (nvml.nvmlDeviceGetCount_v2(&count) != UNINITIALIZED)
		die("NVML is initialised", 0);
	for (int i = 0; i < 2; i++)
		check("nvmlInit", nvml.nvmlInit_v2());
	check("nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex_v2(0, &handle));
	check("nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo(handle, &m));
	total = m.total;
	if (nearest)
		check("nvmlDeviceGetTopologyNearestGpus", nearest(handle, 0, &count, NULL));
	start_children();
	listen();
	threads();
	if (pthread_create(&thread, NULL, wait_events, NULL))
		die("pthread_create", 0);
}

void watch_answer(char *text, size_t size)
{
	unsigned long long least = seen->queries;

	for (int i = 0; i <= options.watching_children && i < MOST; i++) {
		if (seen[i].failed) {
			snprintf(text, size, "error process %d watches, and in process number %d of it NVML says %d", getpid(), i, seen[i].failed);
			return;
		}
		if (seen[i].queries < least)
			least = seen[i].queries;
	}
	snprintf(text, size, "ok {\"pid\":%d,\"ticks\":%llu,\"rounds\":%d,\"devices\":[],\"limits\":[]}", getpid(), least, seen->events_ended);
}

int watch_failed(void)
{
	for (int i = 0; seen && i < MOST; i++)
		if (seen[i].failed)
			return seen[i].failed;
	return 0;
}
