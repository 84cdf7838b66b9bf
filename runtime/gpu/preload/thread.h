// The library's one thread: it sleeps until the host wakes it with a signal, and opens a socket only while it talks.
#ifndef CRYO_GPU_THREAD_H
#define CRYO_GPU_THREAD_H

#include <sys/types.h>

// The host, and other processes' libraries, know these. The signal is for this thread alone, which has all blocked. The host sends it by tgkill(2), another
// process's library with a value (ipc.h).
#define THREAD_NAME "cryo-gpu"
#define THREAD_WAKE 62

// thread_start starts it, once. Without CUDA in the process there is none.
void thread_start(void);
int thread_runs(void);
// thread_id is its number, once it runs.
pid_t thread_id(void);
// thread_with runs a function in a thread of the library's own, with all signals blocked; false where there is none to be had.
int thread_with(void *(*f)(void *));
// thread_hold waits until it neither opens nor closes anything, and keeps it from doing so.
void thread_hold(void);
void thread_let_go(void);
// thread_forked is for the child of a fork.
void thread_forked(void);

#endif
