#define _GNU_SOURCE
#include "gate.h"
#include "forked.h"
#include "interpose.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// A seat is a thread's count of the calls it is in: one within another counts too, so that a callback which the driver makes in the
// middle of a call does not wait at the gate.
//
// Who has an answer here, and which:
// - A thread that waits for the device is in a call, and the gate is not closed before it is back. The deadline is for that.
// - A thread of the driver's own (callbacks of cuLaunchHostFunc and cuStreamAddCallback) may not call the driver. One that does all the
//   same waits; the devices do not become idle then, the deadline passes, and the gate is opened.
// - fork makes a child in which CUDA does not work, as without the library; it finds the gate open (gate_forked). vfork and
//   posix_spawn do not come here.
// - exec ends it all; what was handed over is freed when its last descriptor is closed.
// - exit waits at the gate with the driver's own handlers, until it is opened; SIGKILL and _exit do not.
// - A thread that dies in a call, or leaves it by an exception, longjmp or cancellation, is counted until its end.
struct seat {
	int depth; // the first, for gate.S
	int own;   // the library's: never waited for
	pid_t tid; // 0: free
	unsigned came; // the turn in which it came to the closed gate; 0: it is not there
	int starts;    // the call that it is in starts work on a device
} __attribute__((aligned(64))); // a line of the cache is one thread's

#define ROW 128
struct row {
	struct seat seats[ROW];
	struct row *next;
};
static struct row first;
static pthread_mutex_t seating = PTHREAD_MUTEX_INITIALIZER;
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN __thread struct seat *gate_seat __attribute__((tls_model("initial-exec"))); // this thread's; gate.S counts in it too

// standing is for threads where there is no memory for a seat: they are not counted, and so the gate is not closed any more.
static struct seat standing;

static int closed;
static unsigned turn = 1; // the futex at which threads wait: each turn lets those that came before pass
// fenced is for kernels, and seccomp filters, without membarrier: each call then costs a fence.
static int fenced;
// before is what calls that start work on a device call first; NULL: nothing.
static int (*before)(void);
// gate_guard is true where any of these is: then gate.S leaves all to gate_enter.
HIDDEN int gate_guard;

extern char gate_stubs[] __attribute__((visibility("hidden")));

static const char *const names[] = {
#define NAME(name) #name,
#include "names.h"
#undef NAME
};
#define NAMED (sizeof(names) / sizeof(*names))
HIDDEN void *gate_functions[NAMED + GATE_HANDED]; // behind the stubs
static unsigned char starting[NAMED + GATE_HANDED]; // whether they start work on a device

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int gate_gone(pid_t tid) { return syscall(SYS_tgkill, getpid(), tid, 0) < 0; }

// free_seat finds a seat, if need be that of a thread which has ended. seating is held.
static struct seat *free_seat(void)
{
	for (int look = 0; look < 2; look++)
		for (struct row *r = &first; r; r = r->next)
			for (struct seat *s = r->seats; s < r->seats + ROW; s++)
				if (!s->tid || (look && gate_gone(s->tid)))
					return s;
	return NULL;
}

static struct seat *seat_take(void)
{
	struct seat *s;

	forked_watch();
	pthread_mutex_lock(&seating);
	s = free_seat();
	if (!s) {
		struct row *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (r == MAP_FAILED) {
			standing.tid = getpid();
			standing.depth = 1;
			s = &standing;
		} else {
			r->next = first.next;
			first.next = r;
			s = r->seats;
		}
	}
	if (s != &standing)
		*s = (struct seat){.tid = syscall(SYS_gettid)};
	pthread_mutex_unlock(&seating);
	return gate_seat = s;
}

static void *resolve(unsigned number);

static inline void count(struct seat *s, int depth)
{
	__atomic_store_n(&s->depth, depth, __ATOMIC_RELEASE);
	if (depth == 1) { // what follows must not be done before; who closes the gate sees to the processor's part
		if (__builtin_expect(__atomic_load_n(&fenced, __ATOMIC_RELAXED), 0))
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
		else
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
	}
}

static void stand(struct seat *s)
{
	unsigned came = __atomic_load_n(&turn, __ATOMIC_ACQUIRE);

	__atomic_store_n(&s->came, came, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&closed, __ATOMIC_ACQUIRE) && __atomic_load_n(&turn, __ATOMIC_ACQUIRE) == came) {
		count(s, 0);
		syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, came, NULL, NULL, 0);
		count(s, 1);
	}
	__atomic_store_n(&s->came, 0, __ATOMIC_RELEASE);
}

static void next_turn(void)
{
	__atomic_add_fetch(&turn, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

// seat_enter counts a thread in.
static struct seat *seat_enter(void)
{
	struct seat *s = gate_seat ? gate_seat : seat_take();

	if (!s->depth)
		__atomic_store_n(&s->starts, 0, __ATOMIC_RELAXED);
	count(s, s->depth + 1);
	if (s->depth == 1 && __builtin_expect(__atomic_load_n(&closed, __ATOMIC_ACQUIRE), 0))
		stand(s);
	return s;
}

static int out_of_memory(void) { return 2; } // CUDA_ERROR_OUT_OF_MEMORY

// The stub of that number calls gate_enter where its own short way does not do. gate_enter counts the thread in, and returns the driver's function of the stub.
HIDDEN void *gate_enter(unsigned number)
{
	struct seat *s = seat_enter();
	int (*first)(void);
	void *function;

	first = __atomic_load_n(&before, __ATOMIC_ACQUIRE);
	if (first && s->depth == 1 && starting[number] && first())
		return out_of_memory;
	function = __atomic_load_n(&gate_functions[number], __ATOMIC_ACQUIRE);
	return function ? function : resolve(number);
}

void gate_in(void) { seat_enter(); }

void gate_out(void) { count(gate_seat, gate_seat->depth - 1); }

void gate_starts(void) { __atomic_store_n(&gate_seat->starts, 1, __ATOMIC_SEQ_CST); }

static int missing(void) { return 500; } // CUDA_ERROR_NOT_FOUND

// resolve finds the function of a stub with a name.
static void *resolve(unsigned number)
{
	void *function = number < NAMED ? interpose_function(names[number]) : NULL;

	if (!function)
		return missing;
	__atomic_store_n(&gate_functions[number], function, __ATOMIC_RELEASE);
	return function;
}

// handed finds a stub by its function. The next free one is at handing.
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;

// starts is true for the name of a function that starts work on a device which may touch any memory. Those that copy between the host and given addresses are not among them (managed_calls.c).
static int starts(const char *name)
{
	static const char *const kinds[] = {"cuLaunchKernel", "cuLaunchCooperative", "cuLaunchGrid", "cuGraphLaunch", "cuStreamBatchMemOp", "cuStreamWriteValue", "cuStreamWaitValue", "cuMemcpy2D", "cuMemcpy3D",
		"cuMemcpyBatch", "cuMemcpyPeer", "cuMemcpyWithAttributes", "cuMemcpyAsync", "cuMemcpy_", "cuMemcpyAto", "cuMemcpyHtoA", "cuMemcpyDtoA", "cuMemcpyDtoD", "cuMemsetD"};

	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strncmp(name, kinds[i], strlen(kinds[i])))
			return 1;
	return !strcmp(name, "cuLaunch") || !strcmp(name, "cuMemcpy");
}

void *gate_for(void *function, const char *name)
{
	static unsigned short places[4 * GATE_HANDED]; // numbers of stubs after NAMED, from 1, by the function's hash
	static unsigned used;
	unsigned at = ((uintptr_t)function >> 4) * 2654435761u % (4 * GATE_HANDED);
	void *stub = NULL;

	pthread_mutex_lock(&handing);
	while (places[at] && gate_functions[NAMED + places[at] - 1] != function)
		at = (at + 1) % (4 * GATE_HANDED);
	if (!places[at] && used < GATE_HANDED) {
		__atomic_store_n(&gate_functions[NAMED + used], function, __ATOMIC_RELEASE);
		starting[NAMED + used] = starts(name);
		places[at] = ++used;
	}
	if (places[at])
		stub = gate_stubs + 16 * (size_t)(NAMED + places[at] - 1);
	pthread_mutex_unlock(&handing);
	return stub;
}

// Of membarrier(2), which old headers do not have.
enum { PRIVATE_EXPEDITED = 1 << 3, REGISTER_PRIVATE_EXPEDITED = 1 << 4 };

static int membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

void gate_ready(void)
{
	if (membarrier(REGISTER_PRIVATE_EXPEDITED))
		return;
	__atomic_store_n(&fenced, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&gate_guard, 1, __ATOMIC_SEQ_CST);
}

void gate_own(void)
{
	struct seat *s = gate_seat ? gate_seat : seat_take();

	s->own = 1;
	s->depth = 1;
}

// busy is true for a seat whose thread is in a call, or is about to pass. It counts itself in before it says that it does not stand any more.
static int busy(const struct seat *s)
{
	unsigned came = __atomic_load_n(&s->came, __ATOMIC_SEQ_CST);

	return (came && came != turn) || __atomic_load_n(&s->depth, __ATOMIC_ACQUIRE);
}

// inside is true while any thread is in a call.
static int inside(void)
{
	int found = 0;

	pthread_mutex_lock(&seating);
	for (struct row *r = &first; r && !found; r = r->next)
		for (struct seat *s = r->seats; s < r->seats + ROW; s++) {
			if (!s->tid || s->own || !busy(s))
				continue;
			if (gate_gone(s->tid)) {
				*s = (struct seat){0};
				continue;
			}
			found = 1;
			break;
		}
	pthread_mutex_unlock(&seating);
	return found;
}

int gate_close(int64_t deadline, int stay)
{
	struct timespec pause = {0, 20000};

	__atomic_store_n(&closed, 1, __ATOMIC_SEQ_CST);
	__atomic_store_n(&gate_guard, 1, __ATOMIC_SEQ_CST);
	// Registered anew each time: it is a matter of the process, and a restored one is another. All other threads have passed a full fence
	// after this: who has not seen the gate closed is seen in its seat.
	if (!fenced && !(membarrier(REGISTER_PRIVATE_EXPEDITED) && membarrier(PRIVATE_EXPEDITED))) {
		gate_open();
		return 0;
	}
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	while (standing.tid || inside()) {
		if (now_ns() > deadline) {
			if (!stay)
				gate_open();
			return 0;
		}
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 2000000)
			pause.tv_nsec *= 2;
	}
	return 1;
}

static int guarded(void) { return fenced || before; }

void gate_watch(int (*first)(void))
{
	for (size_t i = 0; i < NAMED; i++)
		starting[i] = starts(names[i]);
	__atomic_store_n(&before, first, __ATOMIC_SEQ_CST);
	__atomic_store_n(&gate_guard, 1, __ATOMIC_SEQ_CST);
}

// starts_still is true while a call of another thread is in progress that starts work.
static int starts_still(pid_t but)
{
	int found = 0;

	pthread_mutex_lock(&seating);
	for (struct row *r = &first; r && !found; r = r->next)
		for (struct seat *s = r->seats; s < r->seats + ROW && !found; s++)
			found = s->tid && s->tid != but && !s->own && __atomic_load_n(&s->starts, __ATOMIC_SEQ_CST) && __atomic_load_n(&s->depth, __ATOMIC_ACQUIRE) && !gate_gone(s->tid);
	pthread_mutex_unlock(&seating);
	return found;
}

void gate_started(pid_t but)
{
	struct timespec pause = {0, 5000};

	while (starts_still(but)) {
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 1000000)
			pause.tv_nsec *= 2;
	}
}

void gate_open(void)
{
	__atomic_store_n(&gate_guard, guarded(), __ATOMIC_SEQ_CST);
	__atomic_store_n(&closed, 0, __ATOMIC_SEQ_CST);
	next_turn();
}

// waits is true while a thread waits at the gate for the next turn.
static int waits(void)
{
	int found = 0;

	pthread_mutex_lock(&seating);
	for (struct row *r = &first; r && !found; r = r->next)
		for (struct seat *s = r->seats; s < r->seats + ROW && !found; s++)
			found = s->tid && !s->own && __atomic_load_n(&s->came, __ATOMIC_SEQ_CST) == turn;
	pthread_mutex_unlock(&seating);
	return found;
}

void gate_steps(unsigned calls)
{
	int64_t last = now_ns() + 100000000;

	while (calls--) {
		int64_t until = now_ns() + 2000000;

		next_turn();
		if (until > last)
			return;
		while (calls && (inside() || !waits())) {
			if (now_ns() > until)
				return;
			sched_yield();
		}
	}
}

void gate_forked(void)
{
	pthread_mutex_init(&seating, NULL);
	pthread_mutex_init(&handing, NULL);
	closed = 0;
	before = NULL;
	gate_guard = fenced;
	for (struct row *r = &first; r; r = r->next)
		for (struct seat *s = r->seats; s < r->seats + ROW; s++)
			if (s != gate_seat)
				*s = (struct seat){0};
	if (gate_seat)
		gate_seat->tid = syscall(SYS_gettid);
}
