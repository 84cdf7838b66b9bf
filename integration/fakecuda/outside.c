// The checkpoint calls: from the helper into another process's struct control.
#define _GNU_SOURCE
#include "control.h"
#include "directory.h"
#include "orders.h"

#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

// address finds a process's struct control: where its libcuda.so.1 begins, and as far in as ours. 0: it has none.
static uintptr_t address(int pid)
{
	char line[512], path[32];
	uintptr_t start = 0;
	Dl_info own;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	while (!start && fgets(line, sizeof(line), f)) {
		unsigned long first, offset;

		if (strstr(line, "/libcuda.so.1") && sscanf(line, "%lx-%*x %*s %lx", &first, &offset) == 2 && offset == 0)
			start = first;
	}
	fclose(f);
	if (!start || !dladdr(&control, &own))
		return 0;
	return start + ((uintptr_t)&control - (uintptr_t)own.dli_fbase);
}

static int get(int pid, uintptr_t from, void *to, size_t bytes)
{
	struct iovec here = {to, bytes}, there = {(void *)from, bytes};

	return process_vm_readv(pid, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static int put(int pid, uintptr_t to, const void *from, size_t bytes)
{
	struct iovec here = {(void *)from, bytes}, there = {(void *)to, bytes};

	return process_vm_writev(pid, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

// look reads a process's struct control; 0 where it does not use the driver.
static uintptr_t look(int pid, struct control *c)
{
	uintptr_t at = address(pid);

	if (!at || !get(pid, at, c, sizeof(*c)) || memcmp(c->magic, CONTROL_MAGIC, sizeof(c->magic)) || !c->attended)
		return 0;
	return at;
}

static int session(int pid)
{
	char path[32], line[512], *end;
	int sid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fgets(line, sizeof(line), f) && (end = strrchr(line, ')')))
		sscanf(end + 1, " %*c %*d %*d %d", &sid);
	fclose(f);
	return sid;
}

int process_number(int pid)
{
	int own = session(pid), number = 0, counted = 0;
	struct control c;
	struct dirent *e;
	DIR *d = opendir("/proc");

	while (d && (e = readdir(d))) {
		int other = atoi(e->d_name);

		if (other <= 0 || other > pid || session(other) != own || !look(other, &c))
			continue;
		number++;
		counted |= other == pid;
	}
	if (d)
		closedir(d);
	return counted ? number : 0;
}

// ask has the process's own thread do the request. until is when to stop waiting, 0: never; a thread that comes to it later, because
// its process was frozen, sees the deadline and does nothing.
static CUresult ask(int pid, struct request *request, int64_t until)
{
	struct control c;
	uintptr_t at = look(pid, &c);
	unsigned asked = c.asked + 1;

	if (!at)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!put(pid, at + offsetof(struct control, request), request, sizeof(*request)) ||
	    !put(pid, at + offsetof(struct control, asked), &asked, sizeof(asked)))
		return CUDA_ERROR_UNKNOWN;
	for (;; sleep_ms(1)) {
		if (!get(pid, at, &c, sizeof(c)))
			return CUDA_ERROR_UNKNOWN; // it is gone
		if (c.answered == asked)
			return c.result;
		if (until && now_ns() > until)
			return CUDA_ERROR_NOT_READY;
	}
}

// call is ask with orders before and the log after.
static CUresult call(const char *name, int pid, struct request *request, unsigned timeout_ms)
{
	struct order o = orders_take(name, pid);
	int64_t until = 0;
	CUresult r = o.error;

	if (timeout_ms) {
		request->deadline = now_ns() + timeout_ms * INT64_C(1000000);
		until = request->deadline + INT64_C(200000000);
	}
	request->slow_ms = o.slow_ms;
	if (r == CUDA_SUCCESS)
		r = ask(pid, request, until);
	return orders_done(&o, name, pid, r);
}

// As with the real driver, a call that is in progress ends first, also if who made it has died.
CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct order o = orders_take("state", pid);
	CUresult r = o.error;
	struct control c;

	while (r == CUDA_SUCCESS) {
		if (!look(pid, &c))
			r = CUDA_ERROR_NOT_INITIALIZED;
		else if (c.answered == c.asked)
			break;
		sleep_ms(1);
	}
	if (r == CUDA_SUCCESS)
		*state = c.state;
	return orders_done(&o, "state", pid, r);
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	struct request r = {.call = CALL_LOCK};

	return call("lock", pid, &r, args ? args->timeoutMs : 0);
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	struct request r = {.call = CALL_CHECKPOINT};

	(void)args;
	return call("checkpoint", pid, &r, 0);
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct request r = {.call = CALL_RESTORE};

	if (args && args->gpuPairsCount > MAX_DEVICES)
		return CUDA_ERROR_INVALID_VALUE;
	if (args && args->gpuPairsCount) {
		r.pairs_count = args->gpuPairsCount;
		memcpy(r.pairs, args->gpuPairs, r.pairs_count * sizeof(*r.pairs));
	}
	return call("restore", pid, &r, 0);
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	struct request r = {.call = CALL_UNLOCK};

	(void)args;
	return call("unlock", pid, &r, 0);
}

// As with the real driver, the process need not run for it.
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct control c;

	*tid = look(pid, &c) ? directory_thread(pid) : 0;
	return *tid ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
