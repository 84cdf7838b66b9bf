#define _GNU_SOURCE
#include "hand.h"
#include "able.h"
#include "bound.h"
#include "capture.h"
#include "context.h"
#include "deadline.h"
#include "gate.h"
#include "host.h"
#include "limits.h"
#include "listed.h"
#include "managed.h"
#include "multicast.h"
#include "own.h"
#include "peers.h"
#include "precopy.h"
#include "range.h"
#include "shared.h"
#include "thread.h"
#include "virtual.h"

#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static int state;
static int barred;              // the gate is closed, and calls, or work of the devices, may not have ended: WHOLE
static int stood;
static int given;               // the host has a descriptor of each piece
static int parted;              // memory that is shared was taken apart: only the host opens the gate
static struct cursor attaching; // the last piece that was attached, or made
static int filling;             // GIVEN, with memory that the host fills
static int mistaken;            // the driver does not find memory by descriptors
static int full;                // there is no room for own memory on a device; while attaching

int hand_state(void) { return state; }

int hand_lends(void) { return state == WHOLE || (state == CLOSED && !given && !parted); }

size_t hand_pieces(void) { return state == WHOLE ? table_pieces() + virtual_pieces() + managed_pieces() : listed_pieces(); }

size_t hand_foreign(void) { return table_foreign() + virtual_foreign() + managed_foreign(); }

static size_t files(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) ? SIZE_MAX : limit.rlim_max;
}

const char *hand_reason(void)
{
	if (unable_reason())
		return unable_reason();
	// Where there is no room on a device when its memory comes back, the descriptors are kept.
	if (files() < table_pieces() + managed_pieces() + FILES)
		return "its hard limit of open files (ulimit -Hn) is below the number of pieces of its GPU memory and 256";
	return NULL;
}

void hand_look(void) { mistaken = range_mistaken(); }

int hand_mistaken(void) { return mistaken; }

int hand_stood(void) { return stood; }

static void unbar(void)
{
	barred = 0;
	gate_open();
}

// close_between closes the gate while nothing is being captured: what was begun is not finished behind it, and waiting for the devices ends it.
static CUresult close_between(int64_t deadline, int stay)
{
	struct timespec pause = {0, 1000000};

	for (;;) {
		while (capture_any()) {
			if (barred)
				unbar();
			if (now_ns() > deadline)
				return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
			nanosleep(&pause, NULL);
		}
		barred = stay;
		if (!gate_close(deadline, stay))
			return capture_any() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_NOT_READY;
		if (!capture_any())
			return CUDA_SUCCESS;
		unbar();
	}
}

static CUresult close_for(int64_t deadline, int stay)
{
	CUresult r;

	precopy_return(); // a call that frees memory may wait for that, inside the gate
	bound_check();
	if (hand_reason())
		return CUDA_ERROR_NOT_SUPPORTED;
	r = close_between(deadline, stay);
	if (r != CUDA_SUCCESS)
		return r;
	r = deadline_run(contexts_synchronize, deadline);
	if (r == CUDA_SUCCESS)
		range_free_put_off(1);
	if (r == CUDA_SUCCESS)
		r = managed_withdraw(); // the driver would lose a process that has memory of the host mapped
	if (r == CUDA_SUCCESS)
		r = listed_make(files());
	if (r == CUDA_SUCCESS && hand_reason()) // by the last call before
		r = CUDA_ERROR_NOT_SUPPORTED;
	return r;
}

CUresult hand_close(unsigned deadline_ms, int stay)
{
	int64_t deadline = now_ns() + deadline_ms * INT64_C(1000000);
	CUresult r;

	if (state != WHOLE)
		return CUDA_SUCCESS;
	r = close_for(deadline, stay);
	if (r == CUDA_SUCCESS) {
		state = CLOSED;
		stood = 1;
		given = 0;
	} else if (r != CUDA_ERROR_NOT_READY || !stay) {
		unbar();
	}
	return r;
}

void hand_steps(unsigned calls)
{
	if (state == CLOSED && !given && !parted) {
		state = WHOLE;
		barred = 1;
	}
	if (barred)
		gate_steps(calls);
}

CUresult hand_export(struct piece *p, int *fd)
{
	*fd = p->fd;
	if (p->fd >= 0)
		return CUDA_SUCCESS;
	return driver.cuMemExportToShareableHandle(fd, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

void hand_given(void) { given = 1; }

// shares_still is true where something is shared that was not taken apart.
static int shares_still(void)
{
	struct passed p = {0};

	return shared_next(&p);
}

CUresult hand_release(void)
{
	struct cursor c = {0}, back = {0};
	CUresult r = CUDA_SUCCESS;
	int lost = 0;

	if (state != CLOSED || !given || shares_still() || multicast_there())
		return CUDA_ERROR_ILLEGAL_STATE;
	r = host_take_away();
	if (r != CUDA_SUCCESS)
		return r;
	r = virtual_unmap();
	while (r == CUDA_SUCCESS && cursor_next(&c))
		r = driver.cuMemUnmap(c.address, c.piece->bytes);
	if (r != CUDA_SUCCESS) {
		while (cursor_next(&back) && back.number < c.number)
			lost |= range_put(back.range, back.address, back.piece->bytes, back.piece->handle) != CUDA_SUCCESS;
		lost |= virtual_map() != CUDA_SUCCESS;
		if (!lost)
			lost = host_give_back() != CUDA_SUCCESS;
	}
	if (r != CUDA_SUCCESS && !lost)
		return r;
	if (lost)
		virtual_unmap();
	for (back = (struct cursor){0}; cursor_next(&back);) {
		if (lost)
			driver.cuMemUnmap(back.address, back.piece->bytes);
		own_drop(back.piece);
	}
	state = GIVEN;
	if (r == CUDA_SUCCESS)
		r = peers_take_away();
	if (r == CUDA_SUCCESS)
		limits_lower(); // the driver's checkpoint is next
	return r;
}

// detach undoes what has been attached of all pieces.
static void detach(void)
{
	own_end();
	filling = 0;
	for (struct cursor c = {0}; cursor_next(&c);) {
		if (!c.piece->handle)
			continue;
		driver.cuMemUnmap(c.address, c.piece->bytes);
		own_drop(c.piece);
	}
	memset(&attaching, 0, sizeof(attaching));
}

// allow makes room for so many descriptors, which are kept where memory cannot be made the process's own at once.
static void allow(size_t count)
{
	struct rlimit limit;

	count += FILES;
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= count)
		return;
	limit.rlim_cur = count < limit.rlim_max ? count : limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

// come_back is for the beginning of each way back.
static CUresult come_back(size_t count)
{
	CUresult r;

	if (state != GIVEN)
		return CUDA_ERROR_ILLEGAL_STATE;
	detach(); // what a conversation before this one has left
	if (count != listed_pieces())
		return CUDA_ERROR_INVALID_VALUE;
	r = peers_give_back();
	return r == CUDA_SUCCESS ? limits_set_back() : r; // before memory takes the room for it
}

CUresult hand_part(void)
{
	struct shares s = shared_count();
	CUresult r;

	if (state != CLOSED)
		return CUDA_ERROR_ILLEGAL_STATE;
	parted |= s.exports || s.imports || multicast_there();
	r = multicast_unbind(); // unless that was done
	return r == CUDA_SUCCESS ? shared_part() : r;
}

CUresult hand_unbind(void)
{
	if (state != CLOSED)
		return CUDA_ERROR_ILLEGAL_STATE;
	parted |= multicast_there();
	return multicast_unbind();
}

CUresult hand_join(void) { return state == CLOSED ? multicast_join() : CUDA_ERROR_ILLEGAL_STATE; }

CUresult hand_bind(void) { return state == CLOSED ? multicast_bind() : CUDA_ERROR_ILLEGAL_STATE; }

CUresult hand_attach_begin(size_t count)
{
	CUresult r = come_back(count);

	if (r != CUDA_SUCCESS)
		return r;
	allow(count);
	full = !own_reserve();
	return CUDA_SUCCESS;
}

// place maps memory where a piece belongs. After an error it is released.
static CUresult place(struct cursor *c, CUmemGenericAllocationHandle handle, int own, int fd)
{
	CUresult r = range_put(c->range, c->address, c->piece->bytes, handle);

	if (r != CUDA_SUCCESS) {
		driver.cuMemRelease(handle);
		return r;
	}
	c->piece->handle = handle;
	c->piece->own = own;
	c->piece->fd = fd;
	return CUDA_SUCCESS;
}

static CUresult attach(struct cursor *c, int fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult r = range_import(c->range->device, fd, &handle);

	if (r != CUDA_SUCCESS)
		return r;
	if (!full) {
		r = own_begin(c->range, c->piece, c->address, handle, fd);
		if (r == CUDA_SUCCESS)
			return r;
		full = 1;
	}
	return place(c, handle, 0, fd);
}

CUresult hand_attach(uint32_t number, int fd)
{
	CUresult r = state == GIVEN ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;

	if (r == CUDA_SUCCESS && (!cursor_next(&attaching) || attaching.number != number))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = attach(&attaching, fd);
	if (r != CUDA_SUCCESS) {
		if (!attaching.piece || attaching.piece->fd != fd)
			close(fd);
		if (state == GIVEN)
			detach();
	}
	return r;
}

CUresult hand_attach_settle(void)
{
	CUresult r = own_settle();

	if (r == CUDA_SUCCESS)
		return r;
	if (r == CUDA_ERROR_OUT_OF_MEMORY) {
		full = 1;
		return CUDA_SUCCESS;
	}
	detach();
	return r;
}

// all_there is for when each piece is there.
static CUresult all_there(void)
{
	CUresult r = virtual_map();

	if (r == CUDA_SUCCESS)
		r = host_give_back();
	if (r != CUDA_SUCCESS) {
		detach();
		return r;
	}
	memset(&attaching, 0, sizeof(attaching));
	filling = 0;
	state = CLOSED;
	given = 0;
	return CUDA_SUCCESS;
}

CUresult hand_attach_end(void)
{
	if (state != GIVEN)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (cursor_next(&attaching)) {
		detach();
		return CUDA_ERROR_INVALID_VALUE;
	}
	own_end();
	return all_there();
}

// make makes one piece, with nothing in particular in it.
static CUresult make(struct cursor *c)
{
	CUmemGenericAllocationHandle own;
	CUresult r = range_create(c->range, c->piece->bytes, &own);

	if (r != CUDA_SUCCESS)
		return r;
	return place(c, own, 1, -1);
}

CUresult hand_make(size_t count, uint32_t number, int *fd)
{
	CUresult r = CUDA_SUCCESS;

	if (!number)
		r = come_back(count);
	else if (!filling)
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (r == CUDA_SUCCESS && (!cursor_next(&attaching) || attaching.number != number))
		r = CUDA_ERROR_INVALID_VALUE;
	if (r == CUDA_SUCCESS)
		r = make(&attaching);
	if (r == CUDA_SUCCESS) {
		filling = 1;
		r = hand_export(attaching.piece, fd);
	}
	if (r != CUDA_SUCCESS && state == GIVEN)
		detach();
	return r;
}

CUresult hand_filled(void)
{
	struct cursor c = attaching;

	if (!filling || cursor_next(&c))
		return CUDA_ERROR_ILLEGAL_STATE;
	return all_there();
}

CUresult hand_own(void)
{
	size_t no_room = SIZE_MAX; // for a piece as large as this
	CUresult r = CUDA_SUCCESS;

	if (state != CLOSED)
		return CUDA_ERROR_ILLEGAL_STATE;
	given = 0; // descriptors given before are of memory that may be let go of now
	if (!hand_foreign() || !own_reserve())
		return CUDA_SUCCESS;
	r = multicast_unbind(); // memory that is bound becomes other memory
	if (r != CUDA_SUCCESS)
		return r;
	if (virtual_unmap() != CUDA_SUCCESS)
		no_room = 0; // for any
	for (struct cursor c = {0}; r == CUDA_SUCCESS && cursor_next(&c);) {
		if (c.piece->own || c.piece->bytes >= no_room)
			continue;
		r = own_in_place(c.range, c.piece, c.address);
		if (r == CUDA_ERROR_OUT_OF_MEMORY) {
			no_room = c.piece->bytes;
			r = CUDA_SUCCESS;
		}
	}
	own_end();
	return r == CUDA_SUCCESS ? virtual_map() : r;
}

CUresult hand_open(void)
{
	if (state == GIVEN || (state == CLOSED && (shared_count().apart || multicast_apart())))
		return CUDA_ERROR_ILLEGAL_STATE;
	if (state == CLOSED || barred)
		unbar();
	state = WHOLE;
	parted = 0;
	return CUDA_SUCCESS;
}

void hand_end(void)
{
	precopy_return();
	if (state == GIVEN)
		detach();
	else if (!parted)
		hand_open();
}

void hand_forked(void)
{
	precopy_return();
	state = WHOLE;
	barred = parted = 0;
}
