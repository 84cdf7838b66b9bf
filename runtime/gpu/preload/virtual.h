// Memory that the program makes with handles (cuMemCreate) and maps by itself. The program gets handles of the library, which stay what they are while the
// memory is elsewhere and comes back as other memory. What is on one device is handed over, shared or not (shared.h). Such as is made for compression, fabric handles or sparse arrays stays the
// driver's, since it would have to come back the same. Memory of the host has books of its own (host.h), and so have multicast objects (multicast.h).
#ifndef CRYO_GPU_VIRTUAL_H
#define CRYO_GPU_VIRTUAL_H

#include "range.h"

// memory is what one cuMemCreate has made. Its range is at an address where all of it is mapped: one of the program's, or one of the library's own, which the program does
// not know. It is chosen anew for each time that it is handed over.
struct memory {
	struct range range; // count is 0 where this place is free
	CUmemAllocationProp prop; // as the program asked for it
	struct piece one;   // the piece, where that is all
	unsigned handles;   // that the program has of it, 0: it has released them
	unsigned mapped;    // mappings of the program's, and what is bound of it
	int stays;          // with the driver
	int imported;       // another process has made it; its one piece has the descriptor by which it came
	int host;           // it is memory of the host (host.h)
	struct multicast *multicast; // it is a multicast object (multicast.h); NULL: it is none
	void *saved;        // what was in it, where that is so and it is gone
	CUdeviceptr reserved; // the library's own address for it; 0: it has none
	int chosen;         // it is handed over
};

// mapping is one of the program's. read and write are devices that have access, by bits. gone: it is not mapped while its memory is elsewhere.
// host is the access that the host has, in memory of the host.
struct mapping { CUdeviceptr address; size_t bytes, offset; struct memory *memory; uint64_t read, write; CUmemAccessDesc host; int gone; };

// virtual_lock holds for all of this, and for the driver's calls that change it.
void virtual_lock(void);
void virtual_unlock(void);
// virtual_new returns memory of pieces of a size, of which nothing is made yet; NULL: there is no place for it. virtual_end frees what is made, and the place.
struct memory *virtual_new(const CUmemAllocationProp *prop, size_t bytes, size_t piece);
CUresult virtual_end(struct memory *m);
// virtual_unused ends memory that the program cannot reach any more.
CUresult virtual_unused(struct memory *m);
// virtual_goes is true for memory that can be handed over.
int virtual_goes(const struct memory *m);
// virtual_handle returns the program's handle of memory, and virtual_of the memory of a handle; NULL: it is none of the library's. Memory that is mapped has its handle still when
// the program has released it: the driver maps such a one again. virtual_real is what the driver gets for such a one: 0 for one that has been the library's.
CUmemGenericAllocationHandle virtual_handle(const struct memory *m);
struct memory *virtual_of(CUmemGenericAllocationHandle handle);
CUmemGenericAllocationHandle virtual_real(CUmemGenericAllocationHandle handle);
// virtual_at returns the memory at a place, used or not, or NULL past the last.
struct memory *virtual_at(size_t place);
// mapping_at returns the mapping at a place in ascending order of addresses, or NULL past the last; mapping_after the place of the first that ends after an address. mapping_room
// makes sure that one can be added.
struct mapping *mapping_at(size_t place);
size_t mapping_after(CUdeviceptr address);
int mapping_room(void);
void mapping_add(const struct mapping *m);
void mapping_remove(size_t place);
// mapping_map maps it, without access. After an error it is not mapped.
CUresult mapping_map(const struct mapping *m);
// mapping_access sets the access that it has by the books.
CUresult mapping_access(const struct mapping *m);

// virtual_take_away unmaps what the program, or a handle of legacy IPC, has mapped at addresses, and ends memory that cannot be reached any more.
CUresult virtual_take_away(CUdeviceptr pointer, size_t bytes);
// mapping_bring_back maps one that is gone, with the access that it had.
CUresult mapping_bring_back(struct mapping *m);

// virtual_find copies the mapping that a pointer is in as a range; false where there is none.
int virtual_find(CUdeviceptr pointer, struct range *r);
// virtual_pieces counts the pieces that can be handed over, or must be, virtual_foreign those that are there and not the process's own.
size_t virtual_pieces(void);
size_t virtual_foreign(void);
// virtual_each calls f with each range that can be handed over until one is not 0, and returns that.
int virtual_each(int (*f)(const struct range *r, void *with), void *with);
// virtual_each_placed is the same for those whose address is known now, which is for the library's thread alone to find out.
int virtual_each_placed(int (*f)(const struct range *r, void *with), void *with);

// These are for the library's thread, behind the closed gate. virtual_choose chooses what is handed over, and maps it where it is not; there are to be so many pieces at most. It
// returns how many ranges that are.
size_t virtual_choose(size_t most);
// virtual_unmap unmaps what is chosen, but for its range, until one cannot be. virtual_map maps what is not mapped, and sets the access that mappings had; after an error none of
// it is mapped.
CUresult virtual_unmap(void);
CUresult virtual_map(void);
// virtual_forked is for the child of a fork, and called with virtual_lock.
void virtual_forked(void);

#endif
