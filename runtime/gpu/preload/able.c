#define _GNU_SOURCE
#include "able.h"

#include <stddef.h>

static const char *reason, *sharing;

// first keeps the first reason.
static void first(const char **reason, const char *why)
{
	const char *none = NULL;

	__atomic_compare_exchange_n(reason, &none, why, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

void unable(const char *why) { first(&reason, why); }

const char *unable_reason(void) { return __atomic_load_n(&reason, __ATOMIC_ACQUIRE); }

void unknown(const char *why) { first(&sharing, why); }

const char *unknown_reason(void) { return __atomic_load_n(&sharing, __ATOMIC_ACQUIRE); }

void unable_in_child(void)
{
	reason = NULL;
	unable("it was forked by a process that used CUDA");
}
