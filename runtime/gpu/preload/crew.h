// Threads that do one thing side by side, and are gone when it is done. They have nothing of the C library's: its locks may be held by threads of
// the program that wait for memory which the crew has protected.
#ifndef CRYO_GPU_CREW_H
#define CRYO_GPU_CREW_H

#include <stddef.h>

// crew_run runs a function in the calling thread and in up to most-1 others, each with room of its own, of so many bytes. It may use raw_call and
// memory, and nothing else. The room is there until crew_end. crew_reaches is true where any of the crew's memory is between two addresses.
void crew_run(void (*f)(void *room), unsigned most, size_t bytes);
void crew_end(void);
int crew_reaches(const void *first, const void *end);

// raw_call is a system call that leaves errno alone: its result, or -errno.
long raw_call(long number, long a, long b, long c, long d, long e, long f);

#endif
