// The library's one thread: it sleeps until the host wakes it with a signal, and opens a socket only while it talks.
#ifndef CRYO_GPU_THREAD_H
#define CRYO_GPU_THREAD_H

// thread_start starts it, once. Without CUDA in the process there is none.
void thread_start(void);
int thread_runs(void);
// thread_with runs a function in a thread of the library's own, with all signals blocked; false where there is none to be had.
int thread_with(void *(*f)(void *));
// thread_hold waits until it neither opens nor closes anything, and keeps it from doing so.
void thread_hold(void);
void thread_let_go(void);
// thread_forked is for the child of a fork.
void thread_forked(void);

#endif
