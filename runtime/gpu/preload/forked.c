#define _GNU_SOURCE
#include "forked.h"
#include "able.h"
#include "capture.h"
#include "context.h"
#include "deadline.h"
#include "gate.h"
#include "ipc.h"
#include "limits.h"
#include "managed.h"
#include "peers.h"
#include "table.h"
#include "thread.h"
#include "virtual.h"

#include <pthread.h>

// A child has a copy of what the parent had, and none of its threads. Sockets and descriptors of memory in it would keep the other side
// waiting, and memory allocated. A fork waits for the message that the library's thread is at, which takes milliseconds.
static void prepare(void)
{
	thread_hold();
	table_lock();
	virtual_lock();
	managed_lock();
}

static void parent(void)
{
	managed_unlock();
	virtual_unlock();
	table_unlock();
	thread_let_go();
}

static void child(void)
{
	gate_forked();
	if (thread_runs())
		unable_in_child();
	thread_forked();
	table_forked();
	virtual_forked();
	managed_forked();
	peers_forked();
	lend_forked();
	borrow_forked();
	contexts_forked();
	capture_forked();
	deadline_forked();
	limits_forked();
}

static void watch(void) { pthread_atfork(prepare, parent, child); }

void forked_watch(void)
{
	static int watched;

	if (!__atomic_exchange_n(&watched, 1, __ATOMIC_ACQ_REL))
		watch();
}
