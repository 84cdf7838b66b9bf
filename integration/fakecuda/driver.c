// The driver as the program itself sees it, and the thread that does what the helper asks for.
#define _GNU_SOURCE
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

struct control control = {.magic = CONTROL_MAGIC};

// Every call holds gate from its beginning to its end, so who holds it knows that none is in progress. closed makes new ones wait. It is written while gate is held, or by the
// thread that serves while it is set: then nobody does anything with gate, and one who was stopped while he looked may hold it.
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static int closed;
static int64_t busy_until;  // end of the last launched work; guarded by gate
static struct meeting meeting;        // the last launched kernel of its kind; guarded by gate
static uint64_t meeting_number;

// busy is true while something that was launched has not ended.
static int busy(int64_t now)
{
	for (unsigned i = 0; i < meeting.ranks; i++)
		if (__atomic_load_n(&meeting.launched[i], __ATOMIC_ACQUIRE) < meeting_number)
			return 1;
	if (busy_until > now)
		return 1;
	kernel_settle();
	return 0;
}

void kernel_busy(unsigned ms)
{
	int64_t now = now_ns();

	busy_until = (busy_until > now ? busy_until : now) + ms * INT64_C(1000000);
}

CUresult enter(void)
{
	for (;;) {
		while (__atomic_load_n(&closed, __ATOMIC_ACQUIRE))
			sleep_ms(1);
		pthread_mutex_lock(&gate);
		if (!__atomic_load_n(&closed, __ATOMIC_ACQUIRE))
			break;
		pthread_mutex_unlock(&gate);
	}
	return control.initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult leave(CUresult r)
{
	pthread_mutex_unlock(&gate);
	return r;
}

CUresult enter_idle(void)
{
	CUresult r = enter();

	while (r == CUDA_SUCCESS && busy(now_ns())) {
		leave(r);
		sleep_ms(1);
		r = enter();
	}
	return r;
}

static CUresult do_lock(int64_t deadline)
{
	if (control.state != CU_PROCESS_STATE_RUNNING)
		return CUDA_ERROR_ILLEGAL_STATE;
	__atomic_store_n(&closed, 1, __ATOMIC_RELEASE);
	for (;;) {
		int64_t now = now_ns();

		if (deadline && now >= deadline) {
			__atomic_store_n(&closed, 0, __ATOMIC_RELEASE);
			return CUDA_ERROR_NOT_READY;
		}
		if (!busy(now))
			break;
		pthread_mutex_unlock(&gate);
		sleep_ms(1);
		pthread_mutex_lock(&gate);
	}
	busy_until = 0; // the clock of the next host may be behind
	control.state = CU_PROCESS_STATE_LOCKED;
	return CUDA_SUCCESS;
}

static size_t saved; // by the last checkpoint

size_t fakecuda_saved(void) { return saved; }

static CUresult do_checkpoint(void)
{
	CUresult r;

	if (control.state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (memory_is_managed())
		return CUDA_ERROR_NOT_SUPPORTED;
	while (team_any()) // it hangs
		sleep_ms(1000);
	saved = memory_bytes() + virtual_bytes();
	r = memory_save();
	if (r == CUDA_SUCCESS)
		r = virtual_save();
	if (r == CUDA_SUCCESS)
		r = residue_save();
	control.state = r == CUDA_SUCCESS ? CU_PROCESS_STATE_CHECKPOINTED : CU_PROCESS_STATE_FAILED;
	return r;
}

static CUresult do_restore(const struct request *request)
{
	CUresult r;

	if (control.state != CU_PROCESS_STATE_CHECKPOINTED)
		return CUDA_ERROR_ILLEGAL_STATE;
	// As the real driver: a checkpoint succeeds, and its restore does not.
	if (contexts_have_peers())
		return CUDA_ERROR_INVALID_VALUE;
	if (virtual_has_host())
		return CUDA_ERROR_UNKNOWN;
	if (pools_any())
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (virtual_has_imported() || memory_has_opened())
		return CUDA_ERROR_NOT_SUPPORTED;
	r = memory_load(request->pairs, request->pairs_count);
	if (r == CUDA_SUCCESS)
		r = residue_load();
	if (r == CUDA_SUCCESS) {
		contexts_restored();
		control.state = CU_PROCESS_STATE_LOCKED;
	}
	return r;
}

static CUresult do_unlock(void)
{
	if (control.state != CU_PROCESS_STATE_LOCKED)
		return CUDA_ERROR_ILLEGAL_STATE;
	control.state = CU_PROCESS_STATE_RUNNING;
	__atomic_store_n(&closed, 0, __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

static CUresult serve(const struct request *request)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	sleep_ms(request->slow_ms);
	if (request->call == CALL_LOCK || control.state == CU_PROCESS_STATE_RUNNING) {
		pthread_mutex_lock(&gate);
		r = request->call == CALL_LOCK ? do_lock(request->deadline) : CUDA_ERROR_ILLEGAL_STATE;
		return leave(r);
	}
	switch (request->call) {
	case CALL_CHECKPOINT:
		r = do_checkpoint();
		break;
	case CALL_RESTORE:
		r = do_restore(request);
		break;
	case CALL_UNLOCK:
		r = do_unlock();
		break;
	}
	return r;
}

// attend waits for requests. It looks, as nothing that would wake it could be open during a dump.
static void *attend(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, RESTORE_THREAD);
	for (;; sleep_ms(2)) {
		unsigned asked = __atomic_load_n(&control.asked, __ATOMIC_ACQUIRE);
		struct request request;

		if (asked == control.answered)
			continue;
		request = control.request;
		control.result = serve(&request);
		__atomic_store_n(&control.answered, asked, __ATOMIC_RELEASE);
	}
	return NULL;
}

// forked makes a child what it is with the real driver too: a process that must not use what its parent had.
static void forked(void)
{
	pthread_mutex_init(&gate, NULL);
	closed = 0;
	memory_forget();
	virtual_forget();
	residue_forget();
	contexts_forget();
	memset(&control, 0, sizeof(control));
	memcpy(control.magic, CONTROL_MAGIC, sizeof(control.magic));
}

// attend_start begins what the helper's calls need, under the gate.
static CUresult attend_start(void)
{
	static int handler;
	sigset_t all, before;
	pthread_t thread;
	int failed;

	if (control.attended)
		return CUDA_SUCCESS;
	if (!handler && pthread_atfork(NULL, NULL, forked))
		return CUDA_ERROR_OPERATING_SYSTEM;
	handler = 1;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&thread, NULL, attend, NULL);
	if (!failed)
		pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	control.attended = !failed;
	return failed ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

// fakecuda_attend is for NVML, which loads the real driver's library, too: the checkpoint calls know the process from then on.
FAKE void fakecuda_attend(void);
FAKE void fakecuda_attend(void)
{
	if (enter() == CUDA_ERROR_NOT_INITIALIZED && devices_find() == CUDA_SUCCESS)
		attend_start();
	leave(CUDA_SUCCESS);
}

CUresult cuInit(unsigned flags)
{
	CUresult r = CUDA_SUCCESS;

	if (flags != 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = orders_init();
	if (r != CUDA_SUCCESS)
		return r;
	if (enter() == CUDA_SUCCESS)
		return leave(CUDA_SUCCESS);
	r = devices_find();
	if (r != CUDA_SUCCESS)
		return leave(r);
	r = attend_start();
	control.initialized = r == CUDA_SUCCESS;
	return leave(r);
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult r = enter();

	*count = devices_count;
	return leave(r);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (ordinal < 0 || ordinal >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return leave(r);
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (device < 0 || device >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS)
		*uuid = devices[device].uuid;
	return leave(r);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (device < 0 || device >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	if (r == CUDA_SUCCESS)
		*bytes = devices[device].total;
	return leave(r);
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && (device < 0 || device >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	*value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 9 : 0;
	return leave(r);
}

// All GPUs reach each other's memory. An order for cuDeviceCanAccessPeer makes the call fail, which callers take for no.
CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUresult r = orders_own("cuDeviceCanAccessPeer");

	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && (device < 0 || device >= devices_count || peer < 0 || peer >= devices_count))
		r = CUDA_ERROR_INVALID_DEVICE;
	*can = r == CUDA_SUCCESS && device != peer;
	return leave(r);
}

// meet starts a kernel that ends when all ranks have launched as many of them, as NCCL's do.
static void meet(struct meeting m)
{
	meeting = m;
	meeting_number = __atomic_add_fetch(&m.launched[m.rank], 1, __ATOMIC_ACQ_REL);
}

// cuLaunchKernel runs a kernel of kernel.c at once. Without a function it starts one which takes the milliseconds that its argument says and touches nothing, or, in two layers, one that
// meets those of other processes.
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
	unsigned shared, CUstream stream, void **arguments, void **extra)
{
	CUresult r = enter();

	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z || shared || (stream && !function) || !arguments || extra))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS && function)
		r = kernel_run(function, grid_x, arguments);
	else if (r == CUDA_SUCCESS && grid_z == 2)
		meet(*(struct meeting *)arguments[0]);
	else if (r == CUDA_SUCCESS)
		kernel_busy(*(unsigned *)arguments[0]);
	return leave(r);
}

CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data)
{
	CUresult r = leave(enter_idle());

	(void)stream;
	if (r == CUDA_SUCCESS)
		function(data);
	return r;
}
