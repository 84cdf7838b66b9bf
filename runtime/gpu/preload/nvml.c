#define _GNU_SOURCE
#include "nvml.h"
#include "bound.h"
#include "elf.h"
#include "forked.h"
#include "gate.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

// SPARE is how many functions can be handed out that have no name here.
#define SPARE 64
// SLICE is how long a thread may wait for an event before it looks whether NVML is lost, ms.
#define SLICE 200
// QUIET is how long calls in progress may take to end when NVML is lost: they fail. PATIENCE is for a restored container whose device nodes are not made yet. ns.
#define QUIET (INT64_C(10) * 1000000000)
#define PATIENCE (INT64_C(2) * 1000000000)

struct nvml_state nvml_state = {.magic = "cryo-gpu-nvml-1"};

typedef long function(long, long, long, long, long, long, long, long);

static const char *const names[] = {
#define NAME(name) #name,
#include "nvml_names.h"
#undef NAME
};

// functions are NVML's. Those with names are looked up anew when it was shut down: its library may have been closed, and opened elsewhere.
static function *functions[NVML_NAMED + SPARE];
static unsigned spare;

static pthread_mutex_t renewing = PTHREAD_MUTEX_INITIALIZER; // comes first, and is not held in a call
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;     // of what follows, and of handles
static unsigned live;                                        // initialisations that NVML has
static struct { unsigned number; long flags; } first;        // initialisation
static int64_t until;                                        // patience; 0: NVML is not lost

static uint32_t renewed; // the losses after which NVML was initialised again
static int inside;       // threads in calls
static __thread int depth __attribute__((tls_model("initial-exec"))); // NVML may call its own functions by their names, which are ours

void nvml_unable(void) { __atomic_store_n(&nvml_state.unable, 1, __ATOMIC_RELEASE); }

static int lost(void) { return __atomic_load_n(&nvml_state.lost, __ATOMIC_SEQ_CST) != __atomic_load_n(&renewed, __ATOMIC_SEQ_CST); }

static function *resolve(unsigned n)
{
	function *f = __atomic_load_n(&functions[n], __ATOMIC_ACQUIRE);

	if (f || n >= NVML_NAMED)
		return f;
	f = (function *)elf_behind(names[n]);
	if (f && (void *)f != elf_nvml(names[n])) // another library stands between
		nvml_unable();
	if (f && __atomic_load_n(&nvml_state.opened, __ATOMIC_ACQUIRE))
		__atomic_store_n(&functions[n], f, __ATOMIC_RELEASE);
	return f;
}

static long pass(function *f, const long a[NVML_ARGUMENTS])
{
	long r;

	depth++;
	r = f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
	depth--;
	return r;
}

long nvml_direct(unsigned n, const long argument[NVML_ARGUMENTS])
{
	function *f = resolve(n);

	return f ? (int)pass(f, argument) : NVML_ERROR_FUNCTION_NOT_FOUND;
}

// again initialises NVML as often as the program has. What it had is of no use, so that it does not matter what shutting it down comes to. Where devices are missing it is tried once more: a restored container may not
// have its device nodes yet.
static int again(void)
{
	const long none[NVML_ARGUMENTS] = {0}, flags[NVML_ARGUMENTS] = {first.flags};
	struct timespec pause = {0, 50000000};

	if (!until)
		until = now_ns() + PATIENCE;
	for (;; nanosleep(&pause, NULL)) {
		for (; live; live--)
			nvml_direct(NVML_nvmlShutdown, none);
		while (live < nvml_state.opened && nvml_direct(first.number, flags) == NVML_SUCCESS)
			live++;
		if (live == nvml_state.opened && (handles_renew() || now_ns() > until))
			break;
		if (now_ns() > until)
			return 0;
	}
	until = 0;
	return 1;
}

// renew waits until no thread is in a call, and initialises NVML again. It is false where that cannot be done now.
static int renew(void)
{
	struct timespec pause = {0, 1000000};
	int64_t end = now_ns() + QUIET;
	uint32_t losses;
	int ok = 1;

	pthread_mutex_lock(&renewing);
	if (lost()) {
		while ((ok = !__atomic_load_n(&inside, __ATOMIC_SEQ_CST)) == 0 && now_ns() < end)
			nanosleep(&pause, NULL);
		losses = __atomic_load_n(&nvml_state.lost, __ATOMIC_SEQ_CST); // there may be another one meanwhile
		pthread_mutex_lock(&lock);
		if ((ok = ok && again()))
			__atomic_store_n(&renewed, losses, __ATOMIC_SEQ_CST);
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_unlock(&renewing);
	return ok;
}

static int enter(void)
{
	for (;;) {
		__atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		if (!lost())
			return 1;
		__atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
		if (!renew())
			return 0;
	}
}

static void leave(void) { __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); }

// wait_event waits for an event in slices, else NVML could not be shut down meanwhile.
static long wait_event(function *f, const long argument[NVML_ARGUMENTS])
{
	unsigned left = argument[2];

	for (;;) {
		unsigned slice = left < SLICE ? left : SLICE;
		long a[NVML_ARGUMENTS] = {argument[0], argument[1], slice}, r = pass(f, a);

		left -= slice;
		if ((int)r != NVML_ERROR_TIMEOUT || !left || lost())
			return r;
	}
}

static int initialises(unsigned n) { return n == NVML_nvmlInit || n == NVML_nvmlInit_v2 || n == NVML_nvmlInitWithFlags; }

// done keeps the books of a call that has succeeded.
static void done(unsigned n, const long argument[NVML_ARGUMENTS])
{
	pthread_mutex_lock(&lock);
	if (initialises(n)) {
		if (!nvml_state.opened) {
			first.number = n;
			first.flags = n == NVML_nvmlInitWithFlags ? argument[0] : 0;
			forked_watch();
		}
		live++;
		__atomic_store_n(&nvml_state.opened, nvml_state.opened + 1, __ATOMIC_RELEASE);
		if (bound_past_nvml())
			nvml_unable();
	} else if (n == NVML_nvmlShutdown) {
		live -= live > 0;
		if (nvml_state.opened)
			__atomic_store_n(&nvml_state.opened, nvml_state.opened - 1, __ATOMIC_RELEASE);
		if (!nvml_state.opened) {
			handles_forget();
			memset(functions, 0, NVML_NAMED * sizeof(*functions));
		}
	} else {
		handles_made(n, argument);
	}
	pthread_mutex_unlock(&lock);
}

// translate is for what the program knows, under the lock.
static int translate(unsigned n, const long argument[NVML_ARGUMENTS], long real[NVML_ARGUMENTS], int *freed)
{
	int known;

	memcpy(real, argument, NVML_ARGUMENTS * sizeof(*real));
	pthread_mutex_lock(&lock);
	*freed = handles_freed(n, argument);
	known = !*freed && handles_translate(real);
	pthread_mutex_unlock(&lock);
	return known;
}

// call is what all functions come to. A call during which NVML was lost is made again: it has failed, or has read what is not there.
static long call(unsigned n, const long argument[NVML_ARGUMENTS])
{
	function *f = resolve(n);
	long real[NVML_ARGUMENTS], r;

	if (n == NVML_nvmlErrorString)
		return f ? pass(f, argument) : (long)"Unknown Error";
	if (!f)
		return elf_nvml("nvmlInit_v2") ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_LIBRARY_NOT_FOUND;
	if (depth)
		return pass(f, argument);
	for (int tries = 0;; tries++) {
		int freed, over, known;

		if (!enter())
			return NVML_ERROR_UNINITIALIZED;
		known = translate(n, argument, real, &freed);
		if (!known)
			r = freed ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
		else if (n == NVML_nvmlEventSetWait || n == NVML_nvmlEventSetWait_v2)
			r = wait_event(f, real);
		else
			r = pass(f, real);
		over = !known || !lost() || tries == 2 || ((int)r == NVML_SUCCESS && (initialises(n) || n == NVML_nvmlShutdown));
		if (known && over && (int)r == NVML_SUCCESS)
			done(n, argument);
		leave();
		if (over)
			return r;
	}
}

#define PARAMETERS long a, long b, long c, long d, long e, long f, long g, long h
#define CALL(n) call(n, (const long[]){a, b, c, d, e, f, g, h})

#define NAME(name) EXPORT long name(PARAMETERS); EXPORT long name(PARAMETERS) { return CALL(NVML_##name); }
#include "nvml_names.h"
#undef NAME

// Spare ones have octal numbers.
#define EIGHT(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define ALL(X) EIGHT(X, 00) EIGHT(X, 01) EIGHT(X, 02) EIGHT(X, 03) EIGHT(X, 04) EIGHT(X, 05) EIGHT(X, 06) EIGHT(X, 07)
#define STUB(n) static long spare_##n(PARAMETERS) { return CALL(NVML_NAMED + n); }
ALL(STUB)

static function *const stubs[] = {
#define NAME(name) name,
#include "nvml_names.h"
#undef NAME
#define SPARE_STUB(n) spare_##n,
	ALL(SPARE_STUB)
};

// unnamed returns the stub for a function that is newer than this library.
static void *unnamed(function *real)
{
	unsigned n = 0;

	pthread_mutex_lock(&lock);
	while (n < spare && functions[NVML_NAMED + n] != real)
		n++;
	if (n == spare && n < SPARE) {
		__atomic_store_n(&functions[NVML_NAMED + n], real, __ATOMIC_RELEASE);
		spare++;
	}
	pthread_mutex_unlock(&lock);
	if (n < SPARE)
		return (void *)stubs[NVML_NAMED + n];
	nvml_unable();
	return (void *)real;
}

void *nvml_function(const char *name, void *real)
{
	for (unsigned n = 0; n < NVML_NAMED; n++)
		if (!strcmp(names[n], name))
			return (void *)stubs[n];
	return unnamed((function *)real);
}

void nvml_forked(void)
{
	pthread_mutex_init(&renewing, NULL);
	pthread_mutex_init(&lock, NULL);
	inside = 0;
}
