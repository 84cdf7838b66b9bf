#define _GNU_SOURCE
#include "hand.h"
#include "able.h"
#include "bound.h"
#include "capture.h"
#include "context.h"
#include "deadline.h"
#include "gate.h"
#include "limits.h"
#include "range.h"
#include "thread.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

static int state;
static int given;            // the host has a descriptor of each piece
static struct cursor making; // the last piece that was made
static int filling;          // GIVEN, with memory that the host fills

int hand_state(void) { return state; }

int cursor_next(struct cursor *c)
{
	if (c->piece) {
		c->address += c->piece->bytes;
		c->number++;
		c->number_in_range++;
	}
	if (c->range && c->number_in_range == c->range->count) {
		c->range = NULL;
		c->number_in_range = 0;
		c->place++;
	}
	if (!c->range) {
		c->range = table_at(c->place);
		if (!c->range)
			return 0;
		c->address = c->range->address;
	}
	c->piece = &c->range->pieces[c->number_in_range];
	return 1;
}

// close_between closes the gate while nothing is being captured: what was begun is not finished behind it, and waiting for the devices ends it.
static CUresult close_between(int64_t deadline)
{
	struct timespec pause = {0, 1000000};

	for (;;) {
		while (capture_any()) {
			if (now_ns() > deadline)
				return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
			nanosleep(&pause, NULL);
		}
		if (!gate_close(deadline))
			return capture_any() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_NOT_READY;
		if (!capture_any())
			return CUDA_SUCCESS;
		gate_open();
	}
}

CUresult hand_close(unsigned deadline_ms)
{
	int64_t deadline = now_ns() + deadline_ms * INT64_C(1000000);
	CUresult r;

	if (state != WHOLE)
		return CUDA_SUCCESS;
	bound_check();
	if (unable_reason())
		return CUDA_ERROR_NOT_SUPPORTED;
	r = close_between(deadline);
	if (r != CUDA_SUCCESS)
		return r;
	r = deadline_run(contexts_synchronize, deadline);
	if (r == CUDA_SUCCESS)
		range_free_put_off(1);
	if (r == CUDA_SUCCESS && unable_reason()) // by the last call before
		r = CUDA_ERROR_NOT_SUPPORTED;
	if (r != CUDA_SUCCESS) {
		gate_open();
		return r;
	}
	state = CLOSED;
	given = 0;
	return CUDA_SUCCESS;
}

CUresult hand_export(struct piece *p, int *fd)
{
	return driver.cuMemExportToShareableHandle(fd, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

void hand_given(void) { given = 1; }

// drop lets go of a piece that is not mapped any more.
static void drop(struct piece *p)
{
	driver.cuMemRelease(p->handle);
	p->handle = 0;
}

CUresult hand_release(void)
{
	struct cursor c = {0}, back = {0};
	CUresult r = CUDA_SUCCESS;
	int lost = 0;

	if (state != CLOSED || !given)
		return CUDA_ERROR_ILLEGAL_STATE;
	while (r == CUDA_SUCCESS && cursor_next(&c))
		r = driver.cuMemUnmap(c.address, c.piece->bytes);
	if (r != CUDA_SUCCESS)
		while (cursor_next(&back) && back.number < c.number)
			lost |= range_map(back.range->device, back.address, back.piece->bytes, back.piece->handle) != CUDA_SUCCESS;
	if (r != CUDA_SUCCESS && !lost)
		return r;
	for (back = (struct cursor){0}; cursor_next(&back);) {
		if (lost)
			driver.cuMemUnmap(back.address, back.piece->bytes);
		drop(back.piece);
	}
	state = GIVEN;
	if (r == CUDA_SUCCESS)
		limits_lower(); // the driver's checkpoint is next
	return r;
}

// detach undoes what has been made of all pieces.
static void detach(void)
{
	filling = 0;
	for (struct cursor c = {0}; cursor_next(&c);) {
		if (!c.piece->handle)
			continue;
		driver.cuMemUnmap(c.address, c.piece->bytes);
		drop(c.piece);
	}
	memset(&making, 0, sizeof(making));
}

// come_back is for the beginning of the way back.
static CUresult come_back(size_t count)
{
	if (state != GIVEN)
		return CUDA_ERROR_ILLEGAL_STATE;
	detach(); // what a conversation before this one has left
	if (count != table_pieces())
		return CUDA_ERROR_INVALID_VALUE;
	return limits_set_back(); // before memory takes the room for it
}

// make makes one piece, with nothing in particular in it.
static CUresult make(struct cursor *c)
{
	CUmemGenericAllocationHandle handle;
	CUresult r = range_create(c->range->device, c->piece->bytes, &handle);

	if (r != CUDA_SUCCESS)
		return r;
	r = range_map(c->range->device, c->address, c->piece->bytes, handle);
	if (r != CUDA_SUCCESS) {
		driver.cuMemRelease(handle);
		return r;
	}
	c->piece->handle = handle;
	return CUDA_SUCCESS;
}

CUresult hand_make(size_t count, uint32_t number, int *fd)
{
	CUresult r = CUDA_SUCCESS;

	if (!number)
		r = come_back(count);
	else if (!filling)
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (r == CUDA_SUCCESS && (!cursor_next(&making) || making.number != number))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = make(&making);
	if (r == CUDA_SUCCESS) {
		filling = 1;
		r = hand_export(making.piece, fd);
	}
	if (r != CUDA_SUCCESS && state == GIVEN)
		detach();
	return r;
}

CUresult hand_filled(void)
{
	struct cursor c = making;

	if (!filling || cursor_next(&c))
		return CUDA_ERROR_ILLEGAL_STATE;
	memset(&making, 0, sizeof(making));
	filling = 0;
	state = CLOSED;
	given = 0;
	return CUDA_SUCCESS;
}

CUresult hand_open(void)
{
	if (state == GIVEN)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (state == CLOSED)
		gate_open();
	state = WHOLE;
	return CUDA_SUCCESS;
}

void hand_end(void)
{
	if (state == GIVEN)
		detach();
	else
		hand_open();
}

void hand_forked(void) { state = WHOLE; }
