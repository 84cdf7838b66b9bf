#define _GNU_SOURCE
#include "able.h"

#include <stddef.h>

static const char *reason;

void unable(const char *why)
{
	const char *none = NULL;

	__atomic_compare_exchange_n(&reason, &none, why, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

const char *unable_reason(void) { return __atomic_load_n(&reason, __ATOMIC_ACQUIRE); }

void unable_in_child(void)
{
	reason = NULL;
	unable("it was forked by a process that used CUDA");
}
