// NVML in a process without CUDA. The driver's checkpoint does not know such a process: the host takes its device files, and puts things in their place that do nothing. The next call
// of NVML initialises it again, and is then what it would have been.
#ifndef CRYO_GPU_NVML_H
#define CRYO_GPU_NVML_H

#include <stdint.h>

// Names and values of NVIDIA's nvml.h.
enum { NVML_SUCCESS = 0, NVML_ERROR_UNINITIALIZED = 1, NVML_ERROR_TIMEOUT = 10, NVML_ERROR_LIBRARY_NOT_FOUND = 12, NVML_ERROR_FUNCTION_NOT_FOUND = 13 };

// NVML_ARGUMENTS is how many a function may have. All are integers and pointers; the longest function has seven.
#define NVML_ARGUMENTS 8

enum {
#define NAME(name) NVML_##name,
#include "nvml_names.h"
#undef NAME
	NVML_NAMED
};

// nvml_state is for the host, which finds it by its magic: runtime/gpu/device/helper_nvml.go. It counts lost up while all threads stand still.
extern struct nvml_state {
	char magic[16];
	uint32_t opened; // initialisations that the program has not undone
	uint32_t unable; // it cannot be initialised again without harm
	uint32_t lost;   // how often its device files were taken
} nvml_state;

// nvml_function returns what the program gets in place of a function of libnvidia-ml.so.1.
void *nvml_function(const char *name, void *real);
// nvml_direct calls a function of NVML by its number, past all of this.
long nvml_direct(unsigned number, const long argument[NVML_ARGUMENTS]);
// nvml_unable says that NVML cannot be initialised again, from now on.
void nvml_unable(void);
// nvml_forked is for the child of a fork, which has its parent's NVML.
void nvml_forked(void);

// What follows is of handles, and called by one thread at a time.

// handles_translate puts the handles that NVML knows now in the place of the program's. It is false where one of them has ended with NVML.
int handles_translate(long argument[NVML_ARGUMENTS]);
// handles_made looks at a call that has succeeded: it may have returned a handle.
void handles_made(unsigned number, const long argument[NVML_ARGUMENTS]);
// handles_freed ends a handle of the program's that NVML does not know any more; false where it is no such.
int handles_freed(unsigned number, const long argument[NVML_ARGUMENTS]);
// handles_renew is called when NVML is initialised again, and is false where a device is missing. handles_forget is for when the program has shut it down.
int handles_renew(void);
void handles_forget(void);

#endif
