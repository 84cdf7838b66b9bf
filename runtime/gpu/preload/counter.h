// Counters by which the library's threads wait for each other.
#ifndef CRYO_GPU_COUNTER_H
#define CRYO_GPU_COUNTER_H

#include <errno.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// counter_wait_for waits while a counter is a number, for so long at most (NULL: for as long as that is), and returns whether it is another now. counter_add adds 1, and wakes all that wait.
static inline int counter_wait_for(uint32_t *counter, uint32_t while_it_is, const struct timespec *most)
{
	while (__atomic_load_n(counter, __ATOMIC_ACQUIRE) == while_it_is)
		if (syscall(SYS_futex, counter, FUTEX_WAIT_PRIVATE, while_it_is, most, NULL, 0) && errno == ETIMEDOUT)
			return 0;
	return 1;
}

static inline void counter_wait(uint32_t *counter, uint32_t while_it_is) { counter_wait_for(counter, while_it_is, NULL); }

static inline void counter_add(uint32_t *counter)
{
	__atomic_add_fetch(counter, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, counter, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

#endif
