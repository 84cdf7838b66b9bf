#define _GNU_SOURCE
#include "thread.h"
#include "gate.h"
#include "elf.h"
#include "hand.h"
#include "ipc.h"
#include "talk.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// What the host has, ms: to come for the socket, and to say something more.
#define COME 5000
#define SAY 60000
// LOOK is how often the thread looks meanwhile whether another process asks for memory, ms.
#define LOOK 5

static int runs;
static pid_t id;
static int own = -1, shown = -1; // ends of the socket pair; under descriptors
static pthread_mutex_t descriptors = PTHREAD_MUTEX_INITIALIZER;
static int again; // another host has come meanwhile

void thread_hold(void) { pthread_mutex_lock(&descriptors); }
void thread_let_go(void) { pthread_mutex_unlock(&descriptors); }
pid_t thread_id(void) { return id; }
int thread_runs(void) { return __atomic_load_n(&runs, __ATOMIC_ACQUIRE); }

static void hide(void)
{
	if (shown >= 0)
		close(shown);
	shown = -1;
	prctl(PR_SET_NAME, THREAD_NAME);
}

static int show(void)
{
	int pair[2];
	char name[16];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return 0;
	own = pair[0];
	shown = pair[1];
	snprintf(name, sizeof(name), THREAD_NAME " %d", shown);
	prctl(PR_SET_NAME, name);
	return 1;
}

// lend_meanwhile serves another process that asks for memory while a host talks: its program waits for it in a call, without which its gate cannot be closed.
static void lend_meanwhile(void)
{
	const struct timespec none = {0};
	siginfo_t why;
	sigset_t wake;

	sigemptyset(&wake);
	sigaddset(&wake, THREAD_WAKE);
	while (hand_lends() && sigtimedwait(&wake, &why, &none) == THREAD_WAKE)
		if (why.si_code == SI_QUEUE)
			lend((uintptr_t)why.si_value.sival_ptr);
		else
			again = 1;
}

// said waits until the host has said something, or has gone.
static int said(int ms)
{
	struct pollfd p = {.fd = own, .events = POLLIN};
	int64_t until = now_ns() + ms * INT64_C(1000000);
	int n;

	while ((n = poll(&p, 1, LOOK)) <= 0) {
		if ((n < 0 && errno != EINTR) || now_ns() > until)
			return 0;
		lend_meanwhile();
	}
	return 1;
}

// attend serves one host, from the signal to the end of the conversation.
static void attend(void)
{
	int more;

	thread_hold();
	more = show();
	thread_let_go();
	for (int wait = COME; more && said(wait); wait = SAY) {
		thread_hold();
		hide();
		more = talk_once(own);
		thread_let_go();
	}
	thread_hold();
	hide();
	if (own >= 0)
		close(own);
	own = -1;
	hand_end();
	thread_let_go();
}

static void *live(void *unused)
{
	siginfo_t why;
	sigset_t wake;

	(void)unused;
	prctl(PR_SET_NAME, THREAD_NAME);
	gate_own();
	sigemptyset(&wake);
	sigaddset(&wake, THREAD_WAKE);
	id = syscall(SYS_gettid);
	__atomic_store_n(&runs, 1, __ATOMIC_RELEASE);
	for (;;) {
		for (; again; attend())
			again = 0;
		if (sigwaitinfo(&wake, &why) != THREAD_WAKE) // a debugger, or CRIU, has interrupted it
			continue;
		if (why.si_code == SI_QUEUE)
			lend((uintptr_t)why.si_value.sival_ptr);
		else
			attend();
	}
	return NULL;
}

// pthread_create is looked up: it is in another library, by another version, before glibc 2.34. A program that has loaded the driver has it.
int thread_with(void *(*f)(void *))
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = elf_next("pthread_create");
	int (*detach)(pthread_t) = elf_next("pthread_detach");
	sigset_t all, before;
	pthread_t thread;
	int ok;

	if (!create || !detach)
		return 0;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &before);
	ok = !create(&thread, NULL, f, NULL);
	if (ok)
		detach(thread);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return ok;
}

void thread_start(void)
{
	static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
	struct timespec moment = {0, 100000};

	if (thread_runs())
		return;
	pthread_mutex_lock(&starting);
	if (!thread_runs()) {
		gate_ready();
		// The program goes on when the host can find it.
		if (thread_with(live))
			while (!thread_runs())
				nanosleep(&moment, NULL);
	}
	pthread_mutex_unlock(&starting);
}

void thread_forked(void)
{
	pthread_mutex_init(&descriptors, NULL);
	if (own >= 0)
		close(own);
	if (shown >= 0)
		close(shown);
	own = shown = -1;
	hand_forked();
	runs = 0;
}
