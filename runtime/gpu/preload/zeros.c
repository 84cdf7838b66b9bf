#define _GNU_SOURCE
#include "zeros.h"
#include "crew.h"
#include "door.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// How a page goes, without anything that the program can see:
// - Its chunk is registered with a userfaultfd, which fails where it is anybody else's.
// - It is write-protected, present or not. Who writes to it waits from then on, in the kernel too.
// - It is read by process_vm_readv, since the program may unmap it at any time. By that a page which a child shares is copied.
// - The chunk is registered so that who comes to an absent page waits too.
// - It is moved aside by UFFDIO_MOVE. Pages that a device may still write to, by a read of a file past the page cache, for example, are not moved. Neither is
//   anything once the program has unmapped, moved or discarded memory of a chunk, since the events of that are not read: EAGAIN.
// - Aside it is nobody else's, and is looked at again. A device may have written to it, and have been done with it, just before it was moved. Then it is moved back.
// - Its chunk is registered no longer, by which the kernel lets go on who has waited. The absent page reads as zero.
// As soon as anything is protected only raw calls are made, and nothing is written to that could be in a range.

// Of linux/userfaultfd.h, which old headers do not have. Linux 6.8 has all of it.
#define FEATURES (UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP | WP_UNPOPULATED | MOVE)
#define WP_UNPOPULATED (1 << 13)
#define MOVE (1 << 16)
struct move { uint64_t to, from, bytes, mode; int64_t moved; };
#define MOVE_IOCTL _IOWR(UFFDIO, 0x05, struct move)
enum { MOVE_DONTWAKE = 1, MOVE_ALLOW_HOLES = 2 };
#define NEW_IOCTL _IO(0xAA, 0x00)

#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define CHUNK ((size_t)16 << 20)  // what a thread is at
#define BUFFER ((size_t)256 << 10) // that it reads at once
#define LEAST ((size_t)64 << 10)  // zeros side by side that are worth a call
#define THREADS 16

// room is a thread's. It is the crew's memory, so that no range that is looked at has any of it.
struct room {
	unsigned char buffer[BUFFER];
	unsigned char pages[CHUNK / PAGE]; // of the chunk
	unsigned char aside[CHUNK + HUGE_PAGE];
};

// The work. next and what follows are for all threads at once.
static const struct zeros_range *ranges;
static size_t ranges_count;
static int fd, self;
static int64_t until;
static uint64_t next;   // chunk, counted through all ranges
static uint64_t gone;   // bytes
static int problem;     // the first errno
static int moving;      // threads that may move something aside

static void stop(long error)
{
	int none = 0;

	__atomic_compare_exchange_n(&problem, &none, (int)-error, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static int stopped(void)
{
	if (!__atomic_load_n(&problem, __ATOMIC_SEQ_CST) && now_ns() > until)
		stop(-ETIME);
	return __atomic_load_n(&problem, __ATOMIC_SEQ_CST) != 0;
}

static long control(unsigned long request, void *argument) { return raw_call(SYS_ioctl, fd, request, (long)argument, 0, 0, 0); }

static long watch(uintptr_t first, uintptr_t end, uint64_t absent)
{
	struct uffdio_register r = {.range = {first, end - first}, .mode = UFFDIO_REGISTER_MODE_WP | absent};

	return control(UFFDIO_REGISTER, &r);
}

static long forget(uintptr_t first, uintptr_t end)
{
	struct uffdio_range r = {first, end - first};

	return control(UFFDIO_UNREGISTER, &r);
}

// hear has those go on who have unmapped, moved or discarded something. What was read of a chunk counts for nothing then, so nothing may be moved aside any more.
static void hear(void)
{
	struct uffd_msg event;

	while (raw_call(SYS_read, fd, (long)&event, sizeof(event), 0, 0, 0) > 0)
		;
}

static int zero(const unsigned char *page)
{
	const uint64_t *words = (const uint64_t *)page;
	uint64_t all = 0;

	for (size_t i = 0; i < PAGE / sizeof(*words); i += 64) {
		for (size_t j = 0; j < 64; j++)
			all |= words[i + j];
		if (all)
			return 0;
	}
	return 1;
}

// read_chunk notes which pages of a chunk that is protected are zero; false where there is no run of them, or it cannot be read.
static int read_chunk(struct room *room, uintptr_t first, uintptr_t end)
{
	size_t run = 0, longest = 0;

	for (uintptr_t at = first; at < end; at += BUFFER) {
		size_t bytes = end - at < BUFFER ? end - at : BUFFER;
		struct iovec here = {room->buffer, bytes}, there = {(void *)at, bytes};
		long got = raw_call(SYS_process_vm_readv, self, (long)&here, 1, (long)&there, 1, 0);

		if (got == -EPERM || got == -ENOSYS)
			stop(got);
		if (got != (long)bytes || stopped())
			return 0; // or it is not mapped any more
		for (size_t i = 0; i < bytes; i += PAGE) {
			int is_zero = zero(room->buffer + i);

			room->pages[(at - first + i) / PAGE] = is_zero;
			run = is_zero ? run + PAGE : 0;
			if (run > longest)
				longest = run;
		}
	}
	return longest >= LEAST;
}

// put_back has a page where it was. Nobody can have come to it there, and the kernel moves it unless the program has unmapped the place.
static void put_back(uintptr_t to, uintptr_t from)
{
	long result;

	do {
		struct move m = {.to = to, .from = from, .bytes = PAGE, .mode = MOVE_DONTWAKE};

		result = control(MOVE_IOCTL, &m);
		if (result == -EAGAIN) {
			stop(result);
			while (__atomic_load_n(&moving, __ATOMIC_SEQ_CST))
				raw_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
			hear();
		}
	} while (result == -EAGAIN || result == -EBUSY || result == -ENOMEM);
}

// move_once is one call, and gives its result. Nothing is moved when all is to stop.
static long move_once(struct move *m)
{
	long result = -ECANCELED;

	__atomic_fetch_add(&moving, 1, __ATOMIC_SEQ_CST);
	if (!stopped())
		result = control(MOVE_IOCTL, m);
	__atomic_fetch_sub(&moving, 1, __ATOMIC_SEQ_CST);
	return result;
}

// move moves zeros of a chunk aside.
static void move(uintptr_t aside, uintptr_t first, uintptr_t end)
{
	int again = 0;

	for (size_t done = 0; done < end - first;) {
		struct move m = {.to = aside + done, .from = first + done, .bytes = end - first - done, .mode = MOVE_DONTWAKE | MOVE_ALLOW_HOLES};
		long result = move_once(&m);
		size_t moved = m.moved > 0 ? m.moved : 0;

		for (size_t i = done; i < done + moved; i += PAGE)
			if (!zero((unsigned char *)aside + i))
				put_back(first + i, aside + i);
		__atomic_fetch_add(&gone, moved, __ATOMIC_RELAXED);
		done += moved;
		if (moved)
			again = 0;
		else if (result == -EBUSY || result == -EFAULT)
			done += PAGE; // somebody else has it too, or there is none
		else if (result == -EINVAL || result == -ENOENT || result == -ECANCELED)
			return; // it is not what it was, or must stay, or all is to stop
		else if (result != -EAGAIN || ++again == 3)
			stop(result);
	}
}

// move_chunk moves the runs of zeros aside that were read. Aside is as far from a huge page's boundary as the chunk is, so that such pages move whole.
static void move_chunk(struct room *room, uintptr_t first, uintptr_t end)
{
	uintptr_t near = (uintptr_t)room->aside, aside = near + ((first - near) & (HUGE_PAGE - 1));
	size_t pages = (end - first) / PAGE, run = 0; // where zeros began

	if (watch(first, end, UFFDIO_REGISTER_MODE_MISSING) < 0 || watch(aside, aside + (end - first), 0) < 0)
		return;
	for (size_t i = 0; i <= pages; i++) {
		if (i < pages && room->pages[i])
			continue;
		if ((i - run) * PAGE >= LEAST)
			move(aside + run * PAGE, first + run * PAGE, first + i * PAGE);
		run = i + 1;
	}
	if (forget(aside, aside + (end - first)) == 0) // else the kernel would tell of what follows, and wait until somebody listens
		raw_call(SYS_madvise, aside, end - first, MADV_DONTNEED, 0, 0, 0);
}

static int resident(struct room *room, uintptr_t first, uintptr_t end)
{
	size_t pages = (end - first) / PAGE;

	if (raw_call(SYS_mincore, first, end - first, (long)room->pages, 0, 0, 0))
		return 0;
	for (size_t i = 0; i < pages; i++)
		if (room->pages[i] & 1)
			return 1;
	return 0;
}

static void do_chunk(struct room *room, uintptr_t first, uintptr_t end)
{
	struct uffdio_writeprotect protect = {.range = {first, end - first}, .mode = UFFDIO_WRITEPROTECT_MODE_WP};
	long result;

	if (!resident(room, first, end) || watch(first, end, 0) < 0)
		return;
	result = control(UFFDIO_WRITEPROTECT, &protect);
	if (result == 0 && read_chunk(room, first, end))
		move_chunk(room, first, end);
	else if (result == -EAGAIN)
		stop(result);
	forget(first, end);
}

// find gives chunk number n; false where there is none. Chunks end at multiples of CHUNK, so that only a range's first and last page tables have several.
static int find(uint64_t n, uintptr_t *first, uintptr_t *end)
{
	for (size_t i = 0; i < ranges_count; i++) {
		uintptr_t begin = ranges[i].first & ~(CHUNK - 1);
		uint64_t chunks = (ranges[i].end - begin + CHUNK - 1) / CHUNK;

		if (n >= chunks) {
			n -= chunks;
			continue;
		}
		*first = n ? begin + n * CHUNK : ranges[i].first;
		*end = n == chunks - 1 ? ranges[i].end : begin + (n + 1) * CHUNK;
		return 1;
	}
	return 0;
}

static void work(void *room)
{
	uintptr_t first, end;

	while (!stopped() && find(__atomic_fetch_add(&next, 1, __ATOMIC_RELAXED), &first, &end))
		if (!crew_reaches((void *)first, (void *)end))
			do_chunk(room, first, end);
}

// threads is how many processors there are, and no more than there are chunks.
static unsigned threads(void)
{
	unsigned long set[128] = {0};
	long bytes = raw_call(SYS_sched_getaffinity, 0, sizeof(set), (long)set, 0, 0, 0);
	uintptr_t first, end;
	unsigned n = 0;

	for (long i = 0; i < bytes / (long)sizeof(*set); i++)
		n += __builtin_popcountl(set[i]);
	if (n > THREADS)
		n = THREADS;
	while (n > 1 && !find(n - 1, &first, &end))
		n--;
	return n ? n : 1;
}

static int open_faults(int faults)
{
	struct uffdio_api api = {.api = UFFD_API, .features = FEATURES};
	int new = ioctl(faults, NEW_IOCTL, O_CLOEXEC | O_NONBLOCK);

	if (new >= 0 && ioctl(new, UFFDIO_API, &api)) {
		int error = errno;

		close(new);
		errno = error;
		return -1;
	}
	return new;
}

int zeros_drop(const struct zeros_range *all, size_t count, int faults, int64_t deadline, uint64_t *dropped)
{
	*dropped = 0;
	fd = open_faults(faults);
	if (fd < 0)
		return errno;
	self = getpid();
	ranges = all;
	ranges_count = count;
	until = deadline;
	next = gone = 0;
	problem = 0;
	crew_run(work, threads(), sizeof(struct room));
	hear(); // closing does as much, unless a child has the descriptor too
	close(fd);
	crew_end();
	*dropped = gone;
	return problem;
}
