// Counters by which the library's threads wait for each other.
#ifndef CRYO_GPU_COUNTER_H
#define CRYO_GPU_COUNTER_H

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

// counter_wait waits while a counter is a number. counter_add adds 1, and wakes all that wait.
static inline void counter_wait(uint32_t *counter, uint32_t while_it_is)
{
	while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) == while_it_is)
		syscall(SYS_futex, counter, FUTEX_WAIT_PRIVATE, while_it_is, NULL, NULL, 0);
}

static inline void counter_add(uint32_t *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, counter, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#endif
