// A process that watches devices by NVML, as a monitor or a launcher does: threads ask all the time by a handle that they keep.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory;

#define WATCH_CALLS(X) \
	X(nvmlInit_v2, (void)) X(nvmlShutdown, (void)) X(nvmlDeviceGetCount_v2, (unsigned *)) X(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **)) X(nvmlDeviceGetUUID, (void *, char *, unsigned)) \
	X(nvmlDeviceGetHandleByUUID, (const char *, void **)) X(nvmlDeviceGetMemoryInfo, (void *, memory *)) X(nvmlDeviceGetUtilizationRates, (void *, unsigned[2])) X(nvmlEventSetCreate, (void **))

static struct {
#define POINTER(name, arguments) int (*name) arguments;
	WATCH_CALLS(POINTER)
#undef POINTER
} nvml;

enum { UNINITIALIZED = 1 };

static void *handle;
static unsigned long long total;

// seen is what the process and each of its children have seen.
#define MOST 8
static struct seen { unsigned long long queries; int failed; } *seen, *own;
static int expected; // of each query

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

		if (r != expected)
			own->failed = r ? r : -3;
		__atomic_add_fetch(&own->queries, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void bind(void)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);

	if (!library)
		die("dlopen libnvidia-ml.so.1", 0);
#define BIND(name, arguments) nvml.name = (int (*) arguments)dlsym(library, #name);
	WATCH_CALLS(BIND)
#undef BIND
}

static void threads(void)
{
	pthread_t thread;

	for (int i = 0; i < options.watchers; i++)
		if (pthread_create(&thread, NULL, watch, NULL))
			die("pthread_create", 0);
}

// start_children forks processes that ask as well: NVML is not initialised in them.
static void start_children(void)
{
	for (int i = 1; i <= options.watching_children && i < MOST; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			own = seen + i;
			expected = UNINITIALIZED;
			threads();
			for (;;)
				pause();
		}
}

void watch_start(void)
{
	memory m;
	unsigned count;
	void *set;

	own = seen = mmap(NULL, MOST * sizeof(*seen), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!strcmp(options.nvml, "apart"))
		setenv("FAKENVML_APART", "1", 1);
	bind();
	if (nvml.nvmlDeviceGetCount_v2(&count) != UNINITIALIZED)
		die("NVML is initialised", 0);
	for (int i = 0; i < 2; i++)
		check("nvmlInit", nvml.nvmlInit_v2());
	check("nvmlDeviceGetHandleByIndex", nvml.nvmlDeviceGetHandleByIndex_v2(0, &handle));
	check("nvmlDeviceGetMemoryInfo", nvml.nvmlDeviceGetMemoryInfo(handle, &m));
	total = m.total;
	if (!strcmp(options.nvml, "events"))
		check("nvmlEventSetCreate", nvml.nvmlEventSetCreate(&set));
	start_children();
	threads();
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
	snprintf(text, size, "ok {\"pid\":%d,\"ticks\":%llu,\"devices\":[],\"limits\":[]}", getpid(), least);
}

int watch_failed(void)
{
	for (int i = 0; seen && i < MOST; i++)
		if (seen[i].failed)
			return seen[i].failed;
	return 0;
}
