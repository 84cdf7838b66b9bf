// This file keeps pages of the host for managed memory. If a chunk loses its pages, the next chunk that comes to the host gets them. The kernel would fill new pages with zeros first, which takes longer than the copy from the device.
#define _GNU_SOURCE
#include "managed.h"

#include <stdint.h>
#include <sys/mman.h>

// slots are addresses for MANAGED_SLOTS chunks. filled is 1 for a slot that has pages. managed_lock guards both.
static char *slots;
static unsigned char filled[MANAGED_SLOTS];

// aligned maps memory for chunks, each of which can be one large page.
static char *aligned(size_t bytes, int protection)
{
	char *p = mmap(NULL, bytes + CHUNK_BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t before = -(uintptr_t)p % CHUNK_BYTES;

	if (p == MAP_FAILED)
		return NULL;
	if (before)
		munmap(p, before);
	munmap(p + before + bytes, CHUNK_BYTES - before);
	madvise(p + before, bytes, MADV_HUGEPAGE);
	return p + before;
}

char *managed_fresh(void) { return aligned(CHUNK_BYTES, PROT_READ | PROT_WRITE); }

CUresult managed_drop(void *address, size_t bytes)
{
	if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	madvise(address, bytes, MADV_HUGEPAGE); // a chunk that is touched for the first time is one page then
	return CUDA_SUCCESS;
}

// slot returns the first slot that is filled, if full is 1, or the first that is not; NULL: there is none.
static char *slot(int full)
{
	if (!slots)
		slots = aligned(MANAGED_SLOTS * CHUNK_BYTES, PROT_NONE);
	for (unsigned i = 0; slots && i < MANAGED_SLOTS; i++)
		if (filled[i] == full)
			return slots + i * CHUNK_BYTES;
	return NULL;
}

static unsigned char *mark(const char *at) { return &filled[(at - slots) / CHUNK_BYTES]; }

CUresult managed_slots(char **all, size_t n)
{
	size_t found = 0;

	if (!slot(0) && !slot(1))
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (int full = 1; full >= 0; full--)
		for (unsigned i = 0; i < MANAGED_SLOTS && found < n; i++)
			if (filled[i] == full)
				all[found++] = slots + i * CHUNK_BYTES;
	for (size_t i = 0; i < n; i++) {
		if (mprotect(all[i], CHUNK_BYTES, PROT_READ | PROT_WRITE))
			return CUDA_ERROR_OUT_OF_MEMORY;
		*mark(all[i]) = 1;
	}
	return CUDA_SUCCESS;
}

// pass moves pages, all at once for other threads. The addresses that they come from stay mapped, so that nothing else comes there.
static int pass(char *from, char *to) { return mremap(from, CHUNK_BYTES, CHUNK_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED; }

CUresult managed_show(char *slot, char *at)
{
	if (mprotect(slot, CHUNK_BYTES, PROT_READ) || !pass(slot, at))
		return CUDA_ERROR_OUT_OF_MEMORY;
	*mark(slot) = 0;
	return CUDA_SUCCESS;
}

CUresult managed_lose(char *at)
{
	char *to = slot(0);

	if (!to || mprotect(at, CHUNK_BYTES, PROT_NONE) || !pass(at, to))
		return managed_drop(at, CHUNK_BYTES);
	*mark(to) = 1;
	return CUDA_SUCCESS;
}

void managed_empty(void)
{
	if (slots)
		managed_drop(slots, MANAGED_SLOTS * CHUNK_BYTES);
	for (unsigned i = 0; i < MANAGED_SLOTS; i++)
		filled[i] = 0;
}
