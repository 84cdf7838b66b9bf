// Device memory of other processes, by the same library as libcuda.h.
#ifndef CRYO_MEMORY_H
#define CRYO_MEMORY_H

#include <stddef.h>

#include "libcuda.h"

// What a function came to: the driver's result, and the call that gave it.
struct outcome { int code; const char *call; };

enum { STREAMS = 4, UNITS = 256 };

struct device {
	int ordinal;
	void *context; // CUcontext, the primary one; NULL: there is no such device
	void *streams[STREAMS];
	int rdma; // memory can be made such that other hardware may reach it
	void *kernel;           // by which memory that is zero is found; NULL: none
	unsigned char *written; // what it finds, UNITS for each stream
	void *sum;              // the kernel that sums memory; NULL: none
	uint64_t key;           // of the sums
	unsigned char *sums;    // what it finds, UNITS times SUMS for each stream
	uint64_t stage;         // memory that what is copied ahead goes through; 0: none
};

struct memory {
	uint64_t address; // CUdeviceptr
	uint64_t handle;  // CUmemGenericAllocationHandle
	size_t bytes;
};

// memory_open finds the functions: NULL, or the name of the first that is missing. cuda_open first.
const char *memory_open(void);

struct outcome memory_device(const struct uuid *uuid, struct device *d);
struct outcome memory_pin(const struct device *d, void *host, size_t bytes);
struct outcome memory_room(const struct device *d, size_t *bytes);
// memory_import maps the memory of a descriptor; memory_make maps new memory. After an error nothing is left.
struct outcome memory_import(const struct device *d, int fd, size_t bytes, struct memory *m);
struct outcome memory_make(const struct device *d, size_t bytes, struct memory *m);
struct outcome memory_export(const struct device *d, const struct memory *m, int *fd);
struct outcome memory_free(const struct device *d, const struct memory *m);
// Copies, done when they return.
struct outcome memory_read(const struct device *d, int stream, void *to, uint64_t from, size_t bytes);
struct outcome memory_write(const struct device *d, int stream, uint64_t to, const void *from, size_t bytes);
struct outcome memory_copy(const struct device *d, uint64_t to, uint64_t from, size_t bytes);
// memory_find_zero loads the kernel for memory_written, which sets a byte for each unit of 1 MiB, of which there are at most UNITS: 0 where all of it is zero. A kernel that the driver does
// not take, or that does not find what it should, is not used.
void memory_find_zero(struct device *d, const char *ptx);
struct outcome memory_written(const struct device *d, int stream, uint64_t from, unsigned units, unsigned char *written);
// memory_clear begins to make memory zero; memory_cleared waits for all that was begun.
struct outcome memory_clear(const struct device *d, uint64_t to, size_t bytes);
struct outcome memory_cleared(const struct device *d);

// sum.c: keyed sums, SUMS bytes for each unit of 1 MiB, of which there are at most UNITS. memory_open_sums loads the kernel with a key of KEY bytes, and allocates STAGE bytes of device
// memory for memory_stage. If the device has no room, or the driver refuses the kernel, memory_open_sums frees everything, and there are no sums.
enum { SUMS = 1024, KEY = 32768 + 48, STAGE = 4 << 20 };
void memory_open_sums(struct device *d, const char *ptx, const void *key);
void memory_close_sums(struct device *d);
void memory_close_stage(struct device *d);
struct outcome memory_sums(const struct device *d, int stream, uint64_t from, unsigned units, unsigned char *sums);
// memory_stage copies up to STAGE bytes within the device, sums each unit of that copy, and copies it to the host.
struct outcome memory_stage(const struct device *d, int stream, void *to, uint64_t from, size_t bytes, unsigned char *sums);

#endif
