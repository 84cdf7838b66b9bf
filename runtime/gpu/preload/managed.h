// Managed memory (cuMemAllocManaged) of the library's: the driver cannot save a process that has any of its own. The device has memory by cuMemCreate at addresses of
// the library's own, and the host has pages at the same addresses. Chunks go to the device ahead of each call that starts work there, and to the host when the host touches them. Where the device has
// no room, both use memory of the host.
#ifndef CRYO_GPU_MANAGED_H
#define CRYO_GPU_MANAGED_H

#include "table.h"

#include <sys/types.h>

// MANAGED_VARIABLE of the environment is "driver" if the driver makes managed memory, and "host" if the library does and all of it is memory of the host.
#define MANAGED_VARIABLE "CRYO_GPU_MANAGED"

// CHUNK_BYTES is what has one state, and goes from side to side, bytes.
#define CHUNK_BYTES GRANULARITY

// The states of a chunk. The host may read and write what is HOST or PINNED, read what is BOTH, and touch nothing else. UNTOUCHED is zero, and has no memory on either side. PINNED is memory of the host that devices reach, too
// (managed_pin.c). A kernel can use the chunks that are DEVICE or PINNED.
enum side { UNTOUCHED, HOST, BOTH, DEVICE, PINNED };

// A location of advice and prefetches: a device, or one of these.
enum { CPU = -1, NOWHERE_ADVISED = -2 };
struct chunk { unsigned char side, read_mostly, apart; short preferred, prefetched; uint64_t accessed; }; // accessed: devices by bits, the last bit is the CPU; apart: the program has turned CU_POINTER_ATTRIBUTE_SYNC_MEMOPS off, to no effect

// unit is memory for some chunks side by side: a device's, or memory of the host if they are PINNED. Without memory, the count of its range is 0.
struct unit { struct range range; struct piece piece; int pinned; };

// pool is one of managed memory (managed_pool.c). Its address is the program's handle.
struct pool {
	struct pool *next;
	CUmemLocation location; // that its memory prefers
	int by_default, current, gone; // gone: it was destroyed; its memory is there until that is freed
	uint64_t attributes[4]; // the first ones of CUmemPool_attribute
	uint64_t access;        // that was asked for: devices by bits, the last bit is the CPU
	size_t most;            // bytes that were in use at one time
};

// span is reserved addresses with one large allocation, or with small ones.
struct span {
	CUdeviceptr address;
	size_t bytes, asked; // asked is 0 where it is for small allocations
	CUcontext context;   // that it was made in, and ends with; if it lasts, the one in which it was used since the last such one ended, or NULL
	CUdevice device;
	uint64_t id;
	int lasts;           // it is for variables, and does not end with a context
	const struct pool *pool; // NULL: it is of none
	size_t unit;         // bytes of each unit, but for the last one
	size_t away;         // chunks that a kernel cannot use
	size_t next, window; // the chunk after those that a touch has brought, and how many those were
	struct chunk *chunks;
	struct unit *units;
	struct slab *slabs;  // of small allocations, one a chunk; NULL: it has a large one
};

// allocation is one of the program's.
struct allocation { CUdeviceptr address; size_t bytes; uint64_t id; struct span *span; };

int managed_by_library(void);
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
// managed_alloc allocates memory in the current context. The memory belongs to a pool, or to none (NULL). managed_free frees the allocation that begins at an address, and returns whether there is one.
CUresult managed_alloc(CUdeviceptr *pointer, size_t bytes, const struct pool *pool);
// managed_alloc_lasting makes memory that needs no context, and does not end with one. It shares no chunk with another allocation.
CUresult managed_alloc_lasting(CUdeviceptr *pointer, size_t bytes);
int managed_free(CUdeviceptr pointer, CUresult *result);
// managed_reserved returns how much a pool of the driver's would have for so many bytes: multiples of 32 MiB.
static inline size_t managed_reserved(size_t bytes) { return (bytes + (32 << 20) - 1) & ~(size_t)((32 << 20) - 1); }
// managed_pool_used returns how many bytes of a pool are in use. managed_trim frees a pool's addresses that have no allocation, and returns whether it has others. The caller has the lock.
size_t managed_pool_used(const struct pool *pool);
int managed_trim(const struct pool *pool);
// managed_pool_alloc and managed_pool_free are cuMemAllocFromPoolAsync and cuMemFreeAsync. NOT_FOUND: the pool is the driver's. NOT_SUPPORTED: a stream is being captured, or the memory is of no pool. The caller names the functions of the
// driver for a stream. What is freed is waited for.
CUresult managed_pool_alloc(CUdeviceptr *pointer, size_t bytes, void *handle, CUstream stream, CUresult (*capturing)(CUstream, int *));
CUresult managed_pool_free(CUdeviceptr pointer, CUstream stream, CUresult (*wait)(CUstream));
// managed_place returns a location as a device or CPU; NOWHERE_ADVISED where there is no such one.
int managed_place(CUmemLocation l);
// managed_context_ends moves what lasts to the host before a context ends in which it was used.
void managed_context_ends(CUcontext context);
void managed_context_ended(CUcontext context);
// managed_synchronizes keeps what the program sets CU_POINTER_ATTRIBUTE_SYNC_MEMOPS to; false where a pointer is in no allocation.
int managed_synchronizes(CUdeviceptr pointer, int on);
// managed_attribute answers what is asked about a pointer (cuPointerGetAttribute); false where it is in no allocation.
int managed_attribute(void *data, int attribute, CUdeviceptr pointer, CUresult *result);

// The states (managed_move.c). The caller has the lock. managed_to_device has chunks of a span be valid on the device; those that the device may write are the host's no more. managed_to_host has one be valid
// on the host; managed_idle comes ahead of that, and waits until nothing is at work that may use managed memory. NOT_READY: a stream is being captured. The thread with that number is in a call that is not waited for.
CUresult managed_to_device(struct span *s, size_t from, size_t to, int writes);
CUresult managed_idle(pid_t but);
CUresult managed_to_host(struct span *s, size_t chunk, int writes);
// managed_fetch makes chunks valid on both sides that are the device's alone; the caller has waited by managed_idle.
CUresult managed_fetch(struct span *s, size_t from, size_t to);
// managed_end frees the memory of a span on both sides.
CUresult managed_end(struct span *s);
// managed_set notes the side of a chunk. managed_at returns its address.
void managed_set(struct span *s, size_t chunk, enum side side);
char *managed_at(const struct span *s, size_t chunk);
// managed_unmap unmaps and releases a unit's memory. If the driver does not unmap it, all is as before.
CUresult managed_unmap(struct unit *u);

// The host's pages (managed_pages.c). The caller has the lock. managed_fresh maps memory for a chunk, which can be one large page; NULL: there is none. managed_drop frees the pages at some addresses, which stay reserved; managed_lose
// does so for a chunk, and keeps the pages if there is a slot for them. managed_slots sets n slots that may be written, at most MANAGED_SLOTS, and managed_show moves a slot's pages to a chunk's address, where the host may read them.
// managed_empty frees the pages of all slots.
#define MANAGED_SLOTS 64
char *managed_fresh(void);
CUresult managed_drop(void *address, size_t bytes);
CUresult managed_lose(char *at);
CUresult managed_slots(char **all, size_t n);
CUresult managed_show(char *slot, char *at);
void managed_empty(void);

// managed_units returns how many units a span has, and managed_unit how large they are.
size_t managed_units(const struct span *s);
size_t managed_unit(int small);

// PINNED memory (managed_pin.c). The caller has the lock. managed_fits returns whether a range's device has room for it, and for what the driver needs besides. managed_advised returns the location that the program prefers for
// all of a unit. managed_pin makes a unit PINNED that has no memory. managed_leave copies a unit to the host's pages and releases its memory; the caller has waited by managed_idle.
int managed_fits(const struct range *r);
int managed_advised(const struct span *s, size_t number);
CUresult managed_pin(struct span *s, size_t number);
CUresult managed_leave(struct span *s, size_t number);
// managed_promote waits until the devices are at rest. Then those PINNED units leave for which the device has room now; the next call that starts work moves them to the device.
CUresult managed_promote(struct span *s, size_t from, size_t to);
// These take the lock. managed_withdraw has all PINNED units leave, behind the closed gate, so that CRIU saves their bytes, and frees the pages of slots. managed_pinned counts PINNED units. managed_evict has units leave a device until they have freed so many
// bytes, and returns whether they have.
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

// managed_copy copies chunks, several at once (managed_copy.c): to the device at at from what the host has, the other way round, or on the host from at. The caller has the lock. After an error, some are copied and some are not.
// managed_copy_ended forgets what belonged to a context that has ended.
enum way { TO_DEVICE, TO_HOST, WITHIN_HOST };
struct transfer { char *host, *at; };
CUresult managed_copy(enum way way, CUcontext context, const struct transfer *all, size_t n);
void managed_copy_ended(CUcontext context);
void managed_copy_forked(void);

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
