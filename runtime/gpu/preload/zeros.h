// Letting go of memory that holds nothing but zeros, while the program's threads run.
#ifndef CRYO_GPU_ZEROS_H
#define CRYO_GPU_ZEROS_H

#include <stddef.h>
#include <stdint.h>

struct zeros_range { uint64_t first, end; };

// zeros_drop has pages of private anonymous memory in the ranges that are zero become absent ones, until the deadline (CLOCK_MONOTONIC, ns). What the program reads
// and writes stays as it is. faults is /dev/userfaultfd. It gives 0 or an errno, after which some may have gone too, and how many bytes have. The calling
// thread is the library's, and no other holds the ranges' memory.
int zeros_drop(const struct zeros_range *ranges, size_t count, int faults, int64_t deadline, uint64_t *dropped);

#endif
