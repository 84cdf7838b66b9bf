// Legacy IPC (cuIpcGetMemHandle) of the library's memory: handles of its own, since the driver has none for memory that has descriptors.
//
// Nothing is open, and no thread waits, but while a handle is being opened. Who opens it listens on a socket, and names it to the owner's library by the value
// of the signal that wakes that one's thread. The owner connects, and sends descriptors of the memory for the handle. Only processes of one user can signal each
// other, and each looks at the other's user; the socket's name, and the handle, have random numbers.
#ifndef CRYO_GPU_IPC_H
#define CRYO_GPU_IPC_H

#include "table.h"

#define IPC_MARK "cryoipc1"

// ipc_handle is in the place of the driver's 64 bytes.
struct ipc_handle {
	char mark[8];
	uint32_t pid, tid;   // of the owner's thread, in its PID namespace
	uint8_t process[16]; // of the owner, random
	uint64_t number;     // of the allocation, never used again in its process
	uint8_t secret[16];
	uint64_t bytes;      // that the owner's program has asked for
};

// ipc_answer comes first, and is followed by messages with the sizes of up to IPC_BATCH pieces, and descriptors of as many.
struct ipc_answer { int32_t result; uint32_t count; uint64_t bytes; };
#define IPC_BATCH 16

// ipc_socket makes a socket; ipc_name is the address of the one that a value names. It returns the length.
struct sockaddr_un;
int ipc_socket(void);
unsigned ipc_name(struct sockaddr_un *name, const uint8_t process[16], uint64_t value);
// ipc_ready waits until a socket can be read; ipc_peer reports whether this process's user is at the other end.
int ipc_ready(int socket, int ms);
int ipc_peer(int socket);
// ipc_random is false where the kernel has no random bytes yet.
int ipc_random(void *bytes, size_t count);

// lend_handle makes the handle of the allocation that a pointer is in; CUDA_ERROR_NOT_FOUND: it is not the library's.
CUresult lend_handle(CUdeviceptr pointer, struct ipc_handle *handle);
// lend_own reports whether a handle is of this process.
int lend_own(const struct ipc_handle *handle);
// lend serves who listens on the socket that a value names. It is for the library's thread.
void lend(uint64_t value);
void lend_forked(void);

// borrow_find copies the opened allocation that a pointer is in; false where there is none. borrow_covers is true where any of these bytes is of one.
int borrow_find(CUdeviceptr pointer, struct range *r);
int borrow_covers(CUdeviceptr pointer, size_t bytes);
// borrow_context_ended unmaps what was opened in a context.
void borrow_context_ended(CUcontext context);
void borrow_forked(void);

#endif
