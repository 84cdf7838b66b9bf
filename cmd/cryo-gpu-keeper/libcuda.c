#include "libcuda.h"

#include <dlfcn.h>

_Static_assert(sizeof(struct lock_args) == 64, "CUcheckpointLockArgs");
_Static_assert(sizeof(struct checkpoint_args) == 64, "CUcheckpointCheckpointArgs");
_Static_assert(sizeof(struct restore_args) == 64, "CUcheckpointRestoreArgs");
_Static_assert(sizeof(struct unlock_args) == 64, "CUcheckpointUnlockArgs");
_Static_assert(sizeof(struct gpu_pair) == 32, "CUcheckpointGpuPair");

static int (*init)(unsigned flags);
static int (*driver_version)(int *version);
static int (*error_name)(int code, const char **name);
static int (*get_state)(int pid, int *state);
static int (*lock)(int pid, struct lock_args *args);
static int (*checkpoint)(int pid, struct checkpoint_args *args);
static int (*restore)(int pid, struct restore_args *args);
static int (*unlock)(int pid, struct unlock_args *args);
static int (*restore_thread)(int pid, int *tid);

static const struct function functions[] = {
	{"cuInit", &init},
	{"cuDriverGetVersion", &driver_version},
	{"cuGetErrorName", &error_name},
	{"cuCheckpointProcessGetState", &get_state},
	{"cuCheckpointProcessLock", &lock},
	{"cuCheckpointProcessCheckpoint", &checkpoint},
	{"cuCheckpointProcessRestore", &restore},
	{"cuCheckpointProcessUnlock", &unlock},
	{"cuCheckpointProcessGetRestoreThreadId", &restore_thread},
};

static void *library;

const char *cuda_open(const char **why)
{
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		*why = dlerror();
		return "libcuda.so.1";
	}
	return cuda_find(functions, sizeof(functions) / sizeof(*functions), why);
}

const char *cuda_find(const struct function *functions, size_t count, const char **why)
{
	for (size_t i = 0; i < count; i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function) {
			*why = dlerror();
			return functions[i].name;
		}
		*(void **)functions[i].into = function;
	}
	return NULL;
}

int cuda_init(void)
{
	return init(0);
}

int cuda_version(int *version)
{
	return driver_version(version);
}

const char *cuda_error_name(int code)
{
	const char *name = NULL;

	return error_name(code, &name) == 0 && name ? name : "";
}

int cuda_state(int pid, int *state)
{
	return get_state(pid, state);
}

int cuda_lock(int pid, unsigned timeout_ms)
{
	struct lock_args args = {.timeout_ms = timeout_ms};

	return lock(pid, &args);
}

int cuda_checkpoint(int pid)
{
	struct checkpoint_args args = {{0}};

	return checkpoint(pid, &args);
}

int cuda_restore(int pid, const struct gpu_pair *pairs, unsigned count)
{
	struct restore_args args = {.pairs = (struct gpu_pair *)pairs, .count = count};

	return restore(pid, &args);
}

int cuda_unlock(int pid)
{
	struct unlock_args args = {{0}};

	return unlock(pid, &args);
}

int cuda_restore_thread(int pid, int *tid)
{
	return restore_thread(pid, tid);
}
