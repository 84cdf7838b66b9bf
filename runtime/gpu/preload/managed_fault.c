// How the library learns that the host touches managed memory which is on the device: by SIGSEGV. The handler waits while a thread of the library's own brings the memory, so that it needs next to no stack: it
// may be on an alternate one. A program's own handler, for all other faults, goes on working: what it installs is kept here, and called from here.
#define _GNU_SOURCE
#include "managed.h"
#include "counter.h"
#include "elf.h"
#include "gate.h"
#include "thread.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define OFFERED __attribute__((visibility("default")))

// own is the program's action for SIGSEGV, from when the library has its handler installed on; under choosing, which handlers may take: it is held for some instructions only.
static struct sigaction own;
static pid_t installed; // the process in which it is so; 0: none. A child of vfork has this memory and handlers of its own
static int choosing;

static void choose(void)
{
	while (__atomic_exchange_n(&choosing, 1, __ATOMIC_ACQUIRE))
		;
}

static void chosen(void) { __atomic_store_n(&choosing, 0, __ATOMIC_RELEASE); }

// request is what the thread that brings memory is to do. One thread asks at a time.
static struct { uintptr_t pointer; int writes; pid_t thread; CUresult result; } request;
static uint32_t asked, done;
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

// WINDOW is how many chunks a touch brings at most.
#define WINDOW 16

// ahead returns how many chunks a touch of one brings: twice as many as the touch before where the host goes through memory in ascending order.
static size_t ahead(struct span *s, size_t chunk)
{
	size_t left = s->bytes / CHUNK_BYTES - chunk;

	s->window = chunk && chunk == s->next ? (2 * s->window < WINDOW ? 2 * s->window : WINDOW) : 1;
	if (s->window > left)
		s->window = left;
	s->next = chunk + s->window;
	return s->window;
}

static CUresult bring(void)
{
	struct span *s = managed_span(request.pointer);
	size_t chunk = s ? (request.pointer - s->address) / CHUNK_BYTES : 0;
	CUresult r = s && managed_used(s, chunk) ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;

	if (r == CUDA_SUCCESS && s->chunks[chunk].side == DEVICE) {
		r = managed_idle(request.thread);
		if (r == CUDA_SUCCESS)
			r = managed_fetch(s, chunk, chunk + ahead(s, chunk));
	}
	return r == CUDA_SUCCESS ? managed_to_host(s, chunk, request.writes) : r;
}

// PATIENCE is how long the host waits for streams that are being captured, which waiting for a context would end, ns.
#define PATIENCE INT64_C(10000000000)

// bring_between is bring when nothing is captured.
static CUresult bring_between(void)
{
	struct timespec pause = {0, 100000};
	int64_t until = now_ns() + PATIENCE;
	CUresult r;

	for (;;) {
		managed_lock();
		r = bring();
		managed_unlock();
		if (r != CUDA_ERROR_NOT_READY || now_ns() > until)
			return r;
		nanosleep(&pause, NULL);
	}
}

static void *serve(void *unused)
{
	(void)unused;
	prctl(PR_SET_NAME, "cryo-managed");
	gate_own();
	for (uint32_t seen = 0;; seen++) {
		counter_wait(&asked, seen);
		request.result = bring_between();
		counter_add(&done);
	}
	return NULL;
}

// SLOW is how long the host waits for kernels before the library says so, once, since that may be for ever, seconds.
#define SLOW 5

static void wait_for_kernels(uint32_t before)
{
	static const char text[] = "cryo: the host has waited for a kernel for 5 s before it reads or writes managed memory. If the kernel waits for the host, create the container with the annotation io.cryo.gpu.managed=host.\n";
	static const struct timespec slow = {SLOW, 0};
	static int said;

	if (counter_wait_for(&done, before, &slow))
		return;
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED) && syscall(SYS_write, STDERR_FILENO, text, sizeof(text) - 1) < 0)
		said = 0;
	counter_wait(&done, before);
}

// bring_one has one chunk be valid on the host.
static CUresult bring_one(uintptr_t pointer, int writes)
{
	uint32_t before;
	CUresult r;

	gate_in();
	pthread_mutex_lock(&asking);
	before = done;
	request.pointer = pointer;
	request.writes = writes;
	request.thread = syscall(SYS_gettid);
	counter_add(&asked);
	wait_for_kernels(before);
	r = request.result;
	pthread_mutex_unlock(&asking);
	gate_out();
	return r;
}

int managed_bring(uintptr_t pointer, size_t bytes, int writes)
{
	CUresult r = CUDA_SUCCESS;

	for (uintptr_t at = pointer & ~(CHUNK_BYTES - 1); r == CUDA_SUCCESS && at < pointer + bytes; at += CHUNK_BYTES)
		if (managed_near(at, CHUNK_BYTES))
			r = bring_one(at < pointer ? pointer : at, writes);
	return r == CUDA_SUCCESS;
}

static int (*next_sigaction(void))(int, const struct sigaction *, struct sigaction *)
{
	static int (*next)(int, const struct sigaction *, struct sigaction *);

	if (!next)
		next = elf_behind("sigaction");
	return next;
}

static int (*next_mask(void))(int, const sigset_t *, sigset_t *)
{
	static int (*next)(int, const sigset_t *, sigset_t *);

	if (!next)
		next = elf_behind("sigprocmask");
	return next;
}

// by_default has the fault, or the signal, do what it does without a handler.
static void by_default(int signal, const siginfo_t *info)
{
	struct sigaction none = {.sa_handler = SIG_DFL};

	next_sigaction()(signal, &none, NULL);
	if (info->si_code <= 0) // it was sent, and is not met again
		syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), signal);
}

// pass_on handles a fault of the program's own by the action that the program has installed. The mask that a handler has ends with the return from the signal.
static void pass_on(int signal, siginfo_t *info, void *context)
{
	struct sigaction action;
	sigset_t mask;

	choose();
	action = own;
	if (own.sa_flags & SA_RESETHAND)
		own.sa_handler = SIG_DFL;
	chosen();
	if (action.sa_handler == SIG_IGN && info->si_code <= 0)
		return;
	if (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN) {
		by_default(signal, info);
		return;
	}
	mask = action.sa_mask;
	if (!(action.sa_flags & SA_NODEFER))
		sigaddset(&mask, signal);
	next_mask()(SIG_BLOCK, &mask, NULL);
	if (action.sa_flags & SA_SIGINFO)
		action.sa_sigaction(signal, info, context);
	else
		action.sa_handler(signal);
}

// Bits of a page fault's error code on x86-64: it was a write, or the fetch of an instruction.
enum { WRITE = 1 << 1, FETCH = 1 << 4 };

static void fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t pointer = (uintptr_t)info->si_addr;
	long long why = ((ucontext_t *)context)->uc_mcontext.gregs[REG_ERR];
	int error = errno, writes = (why & WRITE) != 0;

	if (info->si_code <= 0 || why & FETCH || !managed_near(pointer, 1) || bring_one(pointer, writes) != CUDA_SUCCESS)
		pass_on(signal, info, context);
	errno = error;
}

int managed_catch(void)
{
	struct sigaction ours = {.sa_sigaction = fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER | SA_RESTART};
	sigset_t segv;

	if (installed)
		return 1;
	if (!thread_with(serve) || !next_sigaction() || !next_mask())
		return 0;
	choose();
	if (!next_sigaction()(SIGSEGV, &ours, &own))
		installed = getpid();
	chosen();
	sigemptyset(&segv);
	sigaddset(&segv, SIGSEGV);
	next_mask()(SIG_UNBLOCK, &segv, NULL);
	if (installed)
		gate_watch(managed_start);
	return installed != 0;
}

// without returns a copy of a signal set without SIGSEGV. The kernel kills a thread that has SIGSEGV blocked when it touches memory of the device.
static const sigset_t *without(const sigset_t *set, sigset_t *changed)
{
	if (!set || !managed_by_library())
		return set;
	*changed = *set;
	sigdelset(changed, SIGSEGV);
	return changed;
}

OFFERED int sigaction(int signal, const struct sigaction *new, struct sigaction *old)
{
	struct sigaction changed, before;

	if (!managed_by_library())
		return next_sigaction()(signal, new, old);
	if (new)
		changed = *new;
	if (signal == SIGSEGV && installed == getpid()) {
		choose();
		before = own;
		if (new)
			own = changed;
		chosen();
		if (old)
			*old = before;
		return 0;
	}
	if (new)
		sigdelset(&changed.sa_mask, SIGSEGV);
	return next_sigaction()(signal, new ? &changed : NULL, old);
}

OFFERED sighandler_t signal(int signal, sighandler_t handler)
{
	static sighandler_t (*next)(int, sighandler_t);
	struct sigaction new = {.sa_handler = handler, .sa_flags = SA_RESTART}, old;

	if (managed_by_library() && signal == SIGSEGV)
		return sigaction(signal, &new, &old) ? SIG_ERR : old.sa_handler;
	if (!next)
		next = elf_behind("signal");
	return next(signal, handler);
}

OFFERED int sigprocmask(int how, const sigset_t *set, sigset_t *old)
{
	sigset_t changed;

	return next_mask()(how, how == SIG_UNBLOCK ? set : without(set, &changed), old);
}

OFFERED int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	static int (*next)(int, const sigset_t *, sigset_t *);
	sigset_t changed;

	if (!next)
		next = elf_behind("pthread_sigmask");
	if (!next)
		return sigprocmask(how, set, old) ? errno : 0;
	return next(how, how == SIG_UNBLOCK ? set : without(set, &changed), old);
}

void managed_fault_forked(void)
{
	pthread_mutex_init(&asking, NULL);
	choosing = 0;
	if (installed)
		installed = getpid();
}
