// The part of NVIDIA's driver API that the helper calls, opened at run time: building needs no CUDA.
#ifndef CRYO_LIBCUDA_H
#define CRYO_LIBCUDA_H

#include <stddef.h>
#include <stdint.h>

// States, as in cuda.h: CUprocessState.
enum { STATE_RUNNING, STATE_LOCKED, STATE_CHECKPOINTED, STATE_FAILED };

// As in cuda.h of CUDA 13: CUuuid, CUcheckpointGpuPair and the arguments, each of 64 bytes; what is not used must be zero.
// Driver 570, of CUDA 12.8, knows no pairs: there all of restore_args is reserved.
struct uuid { unsigned char bytes[16]; };
struct gpu_pair { struct uuid old, new; };
struct lock_args { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; };
struct checkpoint_args { uint64_t reserved[8]; };
struct restore_args { struct gpu_pair *pairs; unsigned count; char reserved[64 - sizeof(void *) - sizeof(unsigned)]; };
struct unlock_args { uint64_t reserved[8]; };

// A function of the library, and the pointer for it.
struct function { const char *name; void *into; };

// cuda_open loads libcuda.so.1. NULL: done. Otherwise what was not found, the library ("libcuda.so.1") or a function; why
// then says more, where there is more to say.
const char *cuda_open(const char **why);

// cuda_find looks for more functions, and gives the same.
const char *cuda_find(const struct function *functions, size_t count, const char **why);

// The calls, each with the driver's result. cuda_open first.
int cuda_init(void);
int cuda_version(int *version);
const char *cuda_error_name(int code);
int cuda_state(int pid, int *state);
int cuda_lock(int pid, unsigned timeout_ms);
int cuda_checkpoint(int pid);
int cuda_restore(int pid, const struct gpu_pair *pairs, unsigned count);
int cuda_unlock(int pid);
int cuda_restore_thread(int pid, int *tid);

#endif
