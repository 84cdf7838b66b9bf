// Managed memory (cuMemAllocManaged) of the library's, for containers that ask for it: the driver cannot save a process that has any of its own. The device has memory by cuMemCreate at addresses of
// the library's own, and the host has pages at the same addresses. Chunks go to the device ahead of each call that starts work there, and to the host when the host touches them. What has no room on the
// device is memory of the host that both reach. It was tried with the fake driver only.
#ifndef CRYO_GPU_MANAGED_H
#define CRYO_GPU_MANAGED_H

#include "table.h"

#include <sys/types.h>

// MANAGED_VARIABLE of the environment is 1 where the container asks for it, and "host" where all of it is to be on the host.
#define MANAGED_VARIABLE "CRYO_GPU_MANAGED"

// CHUNK_BYTES is what has one state, and goes from side to side, bytes.
#define CHUNK_BYTES GRANULARITY

// The states of a chunk. The host may read and write what is HOST or PINNED, read what is BOTH, and touch nothing else. UNTOUCHED is zero, and has no memory on either side. PINNED is memory of the host that devices reach, for what
// has no room on a device (managed_pin.c). All from DEVICE on is where devices find it.
enum side { UNTOUCHED, HOST, BOTH, DEVICE, PINNED };

// A location of advice and prefetches: a device, or one of these.
enum { CPU = -1, NOWHERE_ADVISED = -2 };
struct chunk { unsigned char side, read_mostly; short preferred, prefetched; uint64_t accessed; }; // accessed: devices by bits, the last bit is the CPU

// unit is memory for some chunks side by side: a device's, or the host's where they are PINNED. A unit without has no pieces in its range.
struct unit { struct range range; struct piece piece; int pinned; };

// span is reserved addresses with one large allocation, or with small ones.
struct span {
	CUdeviceptr address;
	size_t bytes, asked; // asked is 0 where it is for small allocations
	CUcontext context;   // that it was made in, and ends with
	CUdevice device;
	uint64_t id;
	size_t unit;         // bytes of each unit, but for the last one
	size_t away;         // chunks that are where no device finds them
	struct chunk *chunks;
	struct unit *units;
	struct slab *slabs;  // of small allocations, one a chunk; NULL: it has a large one
};

// allocation is one of the program's.
struct allocation { CUdeviceptr address; size_t bytes; uint64_t id; struct span *span; };

int managed_asked(void);
int managed_on_host(void);

// managed_lock holds for all of this, and for the sides of chunks.
void managed_lock(void);
void managed_unlock(void);
// managed_span returns the span that an address is in, or NULL, and managed_span_at the one at a place in ascending order, or NULL past the last. They are for whom has the lock.
struct span *managed_span(CUdeviceptr pointer);
struct span *managed_span_at(size_t place);
// managed_find copies the allocation that a pointer is in; false where there is none.
int managed_find(CUdeviceptr pointer, struct allocation *a);
// managed_covers is true where any of these bytes is in a span. managed_near is the same without a lock, and may be true where it is not.
int managed_covers(CUdeviceptr pointer, size_t bytes);
int managed_near(CUdeviceptr pointer, size_t bytes);
// managed_used is true for a chunk that an allocation is, or was, in.
int managed_used(const struct span *s, size_t chunk);
// managed_alloc makes memory in the current context. managed_free frees what begins at an address; false where nothing does.
CUresult managed_alloc(CUdeviceptr *pointer, size_t bytes);
int managed_free(CUdeviceptr pointer, CUresult *result);
void managed_context_ended(CUcontext context);
// managed_attribute answers what is asked about a pointer (cuPointerGetAttribute); false where it is in no allocation.
int managed_attribute(void *data, int attribute, CUdeviceptr pointer, CUresult *result);

// The states (managed_move.c). The caller has the lock. managed_to_device has chunks of a span be valid on the device; those that the device may write are the host's no more. managed_to_host has one be valid
// on the host; managed_idle comes ahead of that, and waits until nothing is at work that may use managed memory. NOT_READY: a stream is being captured. The thread with that number is in a call that is not waited for.
CUresult managed_to_device(struct span *s, size_t from, size_t to, int writes);
CUresult managed_idle(pid_t but);
CUresult managed_to_host(struct span *s, size_t chunk, int writes);
// managed_end frees the memory of a span on both sides.
CUresult managed_end(struct span *s);
// managed_set notes the side of a chunk, managed_at is its address, and managed_fresh memory for one that can be one large page; NULL where there is none.
void managed_set(struct span *s, size_t chunk, enum side side);
char *managed_at(const struct span *s, size_t chunk);
char *managed_fresh(void);
// managed_unmap takes a unit's memory away; managed_drop the host's pages.
CUresult managed_unmap(struct unit *u);
CUresult managed_drop(void *address, size_t bytes);
// managed_units returns how many units a span has, and managed_unit how large they are.
size_t managed_units(const struct span *s);
size_t managed_unit(int small);

// Memory of the host for devices (managed_pin.c), for whom has the lock. managed_fits is true where a device has room for a range, and for what the driver may need besides. managed_advised returns where the program
// wants all of a unit. managed_pin has a unit without memory be PINNED. managed_leave has one be the host's, and nothing of it a device's, once managed_idle has waited.
int managed_fits(const struct range *r);
int managed_advised(const struct span *s, size_t number);
CUresult managed_pin(struct span *s, size_t number);
CUresult managed_leave(struct span *s, size_t number);
// managed_promote has chunks that are PINNED for want of room be the host's, if their device has room now and nothing is at work: the next that goes to the device finds it there.
CUresult managed_promote(struct span *s, size_t from, size_t to);
// managed_withdraw has all that is PINNED be the host's, behind the closed gate: CRIU saves it then. managed_pinned counts it. managed_evict takes so many bytes off a device for what the program makes there; false where it could not.
// They take the lock.
CUresult managed_withdraw(void);
unsigned managed_pinned(void);
int managed_evict(CUdevice device, size_t bytes);

// managed_unuse forgets a context that has ended.
void managed_unuse(CUcontext context);
// managed_start has all be on the device for a call that starts work. It takes the lock, and returns other than 0 after an error.
int managed_start(void);
// managed_use has what is managed of two ranges be valid on the device for a call that copies from one to the other there until it returns. It sets within where the one that is called the host's is managed. The call must
// not take the lock any more: who has it may wait for the call.
CUresult managed_use(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUdeviceptr host, int *within);

// managed_catch begins to catch the host's faults; false where it cannot (managed_fault.c). managed_bring has addresses be valid on the host, and waits where the gate is closed.
int managed_catch(void);
int managed_bring(uintptr_t pointer, size_t bytes, int writes);

// managed_each calls f with the range of each unit that has memory until one is not 0, and returns that. managed_pieces counts these, and managed_foreign those that are there and not the process's own.
int managed_each(int (*f)(struct range *r, void *with), void *with);
size_t managed_pieces(void);
size_t managed_foreign(void);
// managed_forked is for the child of a fork, called with managed_lock.
void managed_forked(void);
void managed_fault_forked(void);

#endif
