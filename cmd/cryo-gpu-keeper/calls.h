// What the files of this part share: calls of the driver, and how they are made.
#ifndef CRYO_CALLS_H
#define CRYO_CALLS_H

#include "memory.h"

// CALL makes a call unless one before it has failed.
#define CALL(o, name, expression) do { if (!(o).code) (o) = (struct outcome){(expression), (name)}; } while (0)

enum {
	PORTABLE = 1,  // CU_MEMHOSTREGISTER_PORTABLE, CU_MEMHOSTALLOC_PORTABLE
	DEVICEMAP = 2, // CU_MEMHOSTALLOC_DEVICEMAP
};

extern struct driver_calls {
	int (*stream_wait)(void *stream);
	int (*read_async)(void *to, uint64_t from, size_t bytes, void *stream);
	int (*write_async)(uint64_t to, const void *from, size_t bytes, void *stream);
	int (*copy_async)(uint64_t to, uint64_t from, size_t bytes, void *stream);
	int (*host_alloc)(void **host, size_t bytes, unsigned flags);
	int (*alloc)(uint64_t *address, size_t bytes);
	int (*dealloc)(uint64_t address);
	int (*module_load)(void **module, const void *text);
	int (*module_function)(void **function, void *module, const char *name);
	int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
		void *stream, void **arguments, void **extra);
} driver_calls;

// on_device makes the device's context the current one of the calling thread, which may be any thread.
struct outcome on_device(const struct device *d);

#endif
