#define _GNU_SOURCE
#include "own.h"
#include "hand.h"
#include "range.h"

#include <unistd.h>

// UNSETTLED is how many copies may be under way, while the next piece is mapped: as many pieces as come with a message.
#define UNSETTLED 32

static struct unsettled {
	struct range *range;
	struct piece *piece;
	CUdeviceptr address, aside; // of the own memory; of the imported
	CUmemGenericAllocationHandle imported;
	int fd;
} unsettled[UNSETTLED];
static unsigned count;

static CUdeviceptr aside; // reserved; 0: nothing is
static size_t aside_bytes, aside_used;

int own_reserve(void)
{
	size_t all = 0, largest = 0;
	CUdeviceptr found = 0;

	if (aside)
		return 1;
	for (struct cursor c = {0}; cursor_next(&c);) {
		all += c.piece->bytes;
		if (c.piece->bytes > largest)
			largest = c.piece->bytes;
	}
	aside_bytes = largest > all / UNSETTLED ? all : UNSETTLED * largest;
	aside_used = 0;
	if (all && driver.cuMemAddressReserve(&found, aside_bytes, 0, 0, 0) == CUDA_SUCCESS)
		aside = found;
	return aside != 0;
}

void own_drop(struct piece *p)
{
	driver.cuMemRelease(p->handle);
	if (p->fd >= 0)
		close(p->fd);
	p->handle = 0;
	p->own = 0;
	p->fd = -1;
}

// copy begins to copy between addresses of a range's device, where nothing else is at work.
static CUresult copy(struct range *range, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	CUresult r = driver.cuCtxSetCurrent(range->context);

	if (r == CUDA_SUCCESS)
		r = driver.cuMemcpyDtoD_v2(to, from, bytes);
	driver.cuCtxSetCurrent(NULL);
	return r;
}

// wait_for waits for what copy has begun.
static CUresult wait_for(struct range *range)
{
	CUresult r = driver.cuCtxSetCurrent(range->context);

	if (r == CUDA_SUCCESS)
		r = driver.cuCtxSynchronize();
	driver.cuCtxSetCurrent(NULL);
	return r;
}

// wait_for_all waits for all that is not settled.
static CUresult wait_for_all(void)
{
	CUresult first = CUDA_SUCCESS;

	for (unsigned i = 0; i < count; i++) {
		CUresult r = i && unsettled[i].range->context == unsettled[i - 1].range->context ? CUDA_SUCCESS : wait_for(unsettled[i].range);

		if (first == CUDA_SUCCESS)
			first = r;
	}
	return first;
}

// lay_out maps own memory at the address, and the imported aside. After an error neither is mapped.
static CUresult lay_out(struct unsettled *u, CUmemGenericAllocationHandle own)
{
	CUresult r = range_put(u->range, u->address, u->piece->bytes, own);

	if (r != CUDA_SUCCESS)
		return r;
	r = range_put(u->range, u->aside, u->piece->bytes, u->imported);
	if (r == CUDA_SUCCESS) {
		r = copy(u->range, u->address, u->aside, u->piece->bytes);
		if (r == CUDA_SUCCESS)
			return r;
		wait_for(u->range); // what has begun all the same
		driver.cuMemUnmap(u->aside, u->piece->bytes);
	}
	driver.cuMemUnmap(u->address, u->piece->bytes);
	return r;
}

CUresult own_begin(struct range *range, struct piece *p, CUdeviceptr address, CUmemGenericAllocationHandle handle, int fd)
{
	CUmemGenericAllocationHandle own;

	if (!aside || count == UNSETTLED || p->bytes > aside_bytes - aside_used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (range_create(range, p->bytes, &own) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	unsettled[count] = (struct unsettled){range, p, address, aside + aside_used, handle, fd};
	if (lay_out(&unsettled[count], own) != CUDA_SUCCESS) {
		driver.cuMemRelease(own);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->handle = own;
	p->own = 1;
	p->fd = -1;
	aside_used += p->bytes;
	count++;
	return CUDA_SUCCESS;
}

// put_back has the imported memory in the place of the own, into which it could not be copied. It is not mapped aside any more.
static CUresult put_back(struct unsettled *u)
{
	struct piece *p = u->piece;
	CUresult r = driver.cuMemUnmap(u->address, p->bytes);

	if (r == CUDA_SUCCESS) {
		own_drop(p);
		r = range_put(u->range, u->address, p->bytes, u->imported);
	}
	if (r != CUDA_SUCCESS) {
		driver.cuMemRelease(u->imported);
		close(u->fd);
		return r;
	}
	p->handle = u->imported;
	p->fd = u->fd;
	return CUDA_SUCCESS;
}

// settle ends one copy: the imported memory goes, or takes the place of the own.
static CUresult settle(struct unsettled *u, int copied)
{
	CUresult r = driver.cuMemUnmap(u->aside, u->piece->bytes);

	if (!copied && r == CUDA_SUCCESS)
		return put_back(u);
	driver.cuMemRelease(u->imported);
	close(u->fd);
	return r;
}

CUresult own_settle(void)
{
	int copied = wait_for_all() == CUDA_SUCCESS, failed = 0;

	for (unsigned i = 0; i < count; i++)
		failed |= settle(&unsettled[i], copied) != CUDA_SUCCESS;
	count = 0;
	aside_used = 0;
	if (failed)
		return CUDA_ERROR_OPERATING_SYSTEM;
	return copied ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult own_in_place(struct range *range, struct piece *p, CUdeviceptr address)
{
	CUmemGenericAllocationHandle own;
	CUresult r;

	if (!aside || range_create(range, p->bytes, &own) != CUDA_SUCCESS)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = range_put(range, aside, p->bytes, own);
	if (r == CUDA_SUCCESS) {
		r = copy(range, aside, address, p->bytes);
		if (r == CUDA_SUCCESS)
			r = wait_for(range);
		driver.cuMemUnmap(aside, p->bytes);
	}
	if (r == CUDA_SUCCESS)
		r = driver.cuMemUnmap(address, p->bytes);
	if (r != CUDA_SUCCESS) {
		driver.cuMemRelease(own);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	r = range_put(range, address, p->bytes, own);
	if (r != CUDA_SUCCESS) {
		CUresult back = range_put(range, address, p->bytes, p->handle);

		driver.cuMemRelease(own);
		return back == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
	}
	own_drop(p);
	p->handle = own;
	p->own = 1;
	return CUDA_SUCCESS;
}

void own_end(void)
{
	wait_for_all();
	for (unsigned i = 0; i < count; i++)
		settle(&unsettled[i], 1);
	count = 0;
	if (aside)
		driver.cuMemAddressFree(aside, aside_bytes);
	aside = 0;
}
