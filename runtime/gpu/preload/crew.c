#define _GNU_SOURCE
#include "crew.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST 16
#define STACK (64 * 1024)

// member is a thread, at the beginning of its part of the crew's memory; its room follows, and its stack.
struct member {
	int tid; // the kernel makes it 0, and wakes who waits for that, when the thread uses no memory any more
	void (*f)(void *room);
};
#define HEAD 4096

static char *all; // the crew's memory
static size_t all_bytes;

long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

// begin is the first that a thread does. It has its maker's thread-local memory, and so may not touch that.
static int begin(void *member)
{
	struct member *m = member;

	raw_call(SYS_prctl, PR_SET_NAME, (long)"cryo-zeros", 0, 0, 0, 0); // the host looks for the one that is called cryo-gpu
	m->f((char *)m + HEAD);
	return 0;
}

static void wait_for(struct member *m, int tid)
{
	int left;

	while ((left = __atomic_load_n(&m->tid, __ATOMIC_ACQUIRE)) != 0)
		raw_call(SYS_futex, (long)&m->tid, FUTEX_WAIT, left, 0, 0, 0);
	// It ends by itself now; one that a debugger holds is not waited for.
	for (int i = 0; i < 1000 && !raw_call(SYS_tgkill, getpid(), tid, 0, 0, 0, 0); i++)
		sched_yield();
}

int crew_reaches(const void *first, const void *end)
{
	return (const char *)first < all + all_bytes && (const char *)end > all;
}

void crew_run(void (*f)(void *room), unsigned most, size_t bytes)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
	size_t part = HEAD + ((bytes + 4095) & ~(size_t)4095) + STACK;
	struct member *members[MOST];
	int tids[MOST];
	unsigned n = 0;

	if (most > MOST)
		most = MOST;
	all_bytes = most * part;
	all = mmap(NULL, all_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED) {
		all = NULL;
		all_bytes = 0;
		return;
	}
	for (unsigned i = 1; i < most; i++) {
		struct member *m = (struct member *)(all + i * part);

		m->f = f;
		tids[n] = clone(begin, (char *)m + part, flags, m, &m->tid, NULL, &m->tid);
		if (tids[n] < 0)
			break;
		members[n++] = m;
	}
	f(all + HEAD);
	for (unsigned i = 0; i < n; i++)
		wait_for(members[i], tids[i]);
}

void crew_end(void)
{
	if (all)
		munmap(all, all_bytes);
	all = NULL;
	all_bytes = 0;
}
