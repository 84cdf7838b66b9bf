#define _GNU_SOURCE
#include "cuda.h"
#include "elf.h"

#include <pthread.h>

struct driver driver;

static CUresult unsupported(void) { return CUDA_ERROR_NOT_SUPPORTED; }

static void *function(const char *name)
{
	void *found = elf_driver(name);

	return found ? found : (void *)unsupported;
}

int driver_find(void)
{
	static pthread_mutex_t finding = PTHREAD_MUTEX_INITIALIZER;
	static int found;

	if (__atomic_load_n(&found, __ATOMIC_ACQUIRE))
		return 1;
	if (!elf_driver("cuInit"))
		return 0;
	pthread_mutex_lock(&finding);
#define X(name, arguments) driver.name = (CUresult (*) arguments)function(#name);
	DRIVER(X)
#undef X
	__atomic_store_n(&found, 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&finding);
	return 1;
}
