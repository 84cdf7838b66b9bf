// On which side the chunks of managed memory are, and how they change it.
#define _GNU_SOURCE
#include "managed.h"
#include "capture.h"
#include "context.h"
#include "gate.h"
#include "range.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// UNIT is the most that is one piece of a device's memory.
#define UNIT ((size_t)32 << 20)
// users are the contexts in which the program has started work that may use managed memory. managed_lock guards them.
static CUcontext users[64];
static unsigned users_count;

size_t managed_unit(int small) { return small ? CHUNK_BYTES : range_piece(0) < UNIT ? range_piece(0) : UNIT; }

size_t managed_units(const struct span *s) { return (s->bytes + s->unit - 1) / s->unit; }

char *managed_at(const struct span *s, size_t chunk) { return (char *)s->address + chunk * CHUNK_BYTES; }

void managed_set(struct span *s, size_t chunk, enum side side)
{
	s->away += side < DEVICE;
	s->away -= s->chunks[chunk].side < DEVICE;
	s->chunks[chunk].side = side;
}

static CUresult on_device(struct unit *u)
{
	CUresult r = range_create(&u->range, u->range.bytes, &u->piece.handle);

	if (r != CUDA_SUCCESS)
		return r;
	r = range_put(&u->range, u->range.address, u->range.bytes, u->piece.handle);
	if (r != CUDA_SUCCESS)
		driver.cuMemRelease(u->piece.handle);
	else
		u->range.count = 1;
	return r;
}

// unit_of makes memory for the unit of a chunk, unless it has some. The memory is that of the device that the program prefers, else of the span's. The unit is PINNED if that device has no room, if the program prefers the host, or if
// another device could not reach the memory.
static CUresult unit_of(struct span *s, size_t chunk)
{
	size_t bytes = s->unit, number = chunk * CHUNK_BYTES / bytes, first = number * bytes;
	struct unit *u = &s->units[number];
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	CUcontext other;
	int advised;

	if (u->range.count)
		return CUDA_SUCCESS;
	u->range = (struct range){.address = s->address + first, .bytes = s->bytes - first < bytes ? s->bytes - first : bytes, .device = s->device, .context = s->context, .everywhere = 1, .pieces = &u->piece};
	u->range.asked = u->range.bytes;
	u->piece = (struct piece){.bytes = u->range.bytes, .own = 1, .fd = -1, .passed = -1};
	advised = managed_advised(s, number);
	other = advised >= 0 && advised != s->device ? context_on(advised) : NULL;
	if (other) {
		u->range.device = advised;
		u->range.context = other;
	}
	if (advised != CPU && range_everyone(u->range.device) == range_devices() && managed_fits(&u->range))
		r = on_device(u);
	return r == CUDA_ERROR_OUT_OF_MEMORY ? managed_pin(s, number) : r;
}

// BATCH is how many chunks are copied in one go at most.
#define BATCH MANAGED_SLOTS

// sending is chunks of one span that are about to be copied to the device.
struct sending { struct span *span; int writes; size_t n, chunks[BATCH]; struct transfer all[BATCH]; };

// lost takes from the host what a kernel may change.
static CUresult lost(struct span *s, size_t chunk)
{
	CUresult r = managed_lose(managed_at(s, chunk));

	if (r == CUDA_SUCCESS)
		managed_set(s, chunk, DEVICE);
	return r;
}

// send copies chunks to the device, while the host may only read them.
static CUresult send(struct sending *g)
{
	CUresult r = managed_copy(TO_DEVICE, g->span->context, g->all, g->n);

	for (size_t i = 0; i < g->n; i++) {
		CUresult own = r;

		if (r != CUDA_SUCCESS) {
			mprotect(g->all[i].host, CHUNK_BYTES, PROT_READ | PROT_WRITE);
			continue;
		}
		managed_set(g->span, g->chunks[i], BOTH);
		if (g->writes)
			own = lost(g->span, g->chunks[i]);
		if (own != CUDA_SUCCESS)
			r = own;
	}
	g->n = 0;
	return r;
}

// move has one chunk be on the device. If that takes a copy, it is among those to be sent.
static CUresult move(struct sending *g, size_t chunk)
{
	struct span *s = g->span;
	enum side side = s->chunks[chunk].side;
	char *at = managed_at(s, chunk);
	CUresult r = side == BOTH ? CUDA_SUCCESS : unit_of(s, chunk);

	if (r != CUDA_SUCCESS || s->chunks[chunk].side == PINNED)
		return r;
	if (side == BOTH)
		return g->writes ? lost(s, chunk) : r;
	if (side == UNTOUCHED) {
		r = driver.cuMemsetD8_v2((CUdeviceptr)at, 0, CHUNK_BYTES);
		if (r == CUDA_SUCCESS)
			managed_set(s, chunk, DEVICE);
		return r;
	}
	if (mprotect(at, CHUNK_BYTES, PROT_READ))
		return CUDA_ERROR_OPERATING_SYSTEM;
	g->chunks[g->n] = chunk;
	g->all[g->n++] = (struct transfer){at, at};
	return g->n == BATCH ? send(g) : r;
}

// settle notes that a span which lasts is used in the current context, if it is used in none.
static CUresult settle(struct span *s)
{
	CUresult r;

	if (s->context)
		return CUDA_SUCCESS;
	r = driver.cuCtxGetCurrent(&s->context);
	if (r == CUDA_SUCCESS)
		r = s->context ? driver.cuCtxGetDevice(&s->device) : CUDA_ERROR_INVALID_CONTEXT;
	if (r != CUDA_SUCCESS)
		s->context = NULL;
	return r;
}

CUresult managed_to_device(struct span *s, size_t from, size_t to, int writes)
{
	struct sending g = {.span = s, .writes = writes};
	CUresult r = settle(s), sent, waited;
	struct entered e;

	if (r == CUDA_SUCCESS)
		r = context_enter(&e, s->context);
	if (r != CUDA_SUCCESS)
		return r;
	for (size_t i = from; r == CUDA_SUCCESS && i < to; i++)
		if (s->chunks[i].side < DEVICE && managed_used(s, i))
			r = move(&g, i);
	sent = send(&g);
	waited = driver.cuStreamSynchronize(NULL); // other streams do not wait for it
	context_leave(&e);
	if (r == CUDA_SUCCESS)
		r = sent;
	return r == CUDA_SUCCESS ? waited : r;
}

// use notes that work is about to start in the current context.
static void use(void)
{
	CUcontext context = NULL;

	gate_starts();
	driver.cuCtxGetCurrent(&context);
	for (unsigned i = 0; i < users_count; i++)
		if (users[i] == context)
			return;
	if (context && users_count < sizeof(users) / sizeof(*users))
		users[users_count++] = context;
}

void managed_unuse(CUcontext context)
{
	for (unsigned i = 0; i < users_count; i++)
		if (users[i] == context)
			users[i--] = users[--users_count];
}

int managed_start(void)
{
	CUresult r = CUDA_SUCCESS;
	struct span *s;

	managed_lock();
	use();
	for (size_t i = 0; r == CUDA_SUCCESS && (s = managed_span_at(i)); i++)
		if (s->away)
			r = managed_to_device(s, 0, s->bytes / CHUNK_BYTES, 1);
	managed_unlock();
	return r;
}

// place has addresses be valid on the device, as far as they are managed.
static CUresult place(CUdeviceptr pointer, size_t bytes, int writes)
{
	CUdeviceptr end = pointer + bytes;
	CUresult r = CUDA_SUCCESS;
	struct span *s;

	while (r == CUDA_SUCCESS && pointer < end && (s = managed_span(pointer))) {
		size_t last = (end < s->address + s->bytes ? end : s->address + s->bytes) - s->address;

		r = managed_to_device(s, (pointer - s->address) / CHUNK_BYTES, (last + CHUNK_BYTES - 1) / CHUNK_BYTES, writes);
		pointer = s->address + last;
	}
	return r;
}

CUresult managed_use(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUdeviceptr host, int *within)
{
	CUresult r;

	managed_lock();
	use();
	*within = managed_span(host) != NULL;
	r = place(from, bytes, 0);
	if (r == CUDA_SUCCESS)
		r = place(to, bytes, 1);
	managed_unlock();
	return r;
}

CUresult managed_idle(pid_t but)
{
	CUresult r = CUDA_SUCCESS;
	struct entered e;

	gate_started(but);
	if (!capture_wait_begin())
		return CUDA_ERROR_NOT_READY;
	for (unsigned i = 0; r == CUDA_SUCCESS && i < users_count; i++) {
		if (context_enter(&e, users[i]) != CUDA_SUCCESS) {
			users[i--] = users[--users_count]; // it has ended
			continue;
		}
		r = driver.cuCtxSynchronize();
		context_leave(&e);
	}
	capture_wait_end();
	return r;
}

// fetch copies chunks from the device. All of a chunk appears at its address at once, so that no other thread sees a part.
static CUresult fetch(struct span *s, const size_t *chunks, size_t n)
{
	struct transfer all[BATCH];
	char *places[BATCH];
	CUresult r = managed_slots(places, n);

	if (r != CUDA_SUCCESS)
		return r;
	for (size_t i = 0; i < n; i++)
		all[i] = (struct transfer){places[i], managed_at(s, chunks[i])};
	r = managed_copy(TO_HOST, s->context, all, n);
	for (size_t i = 0; r == CUDA_SUCCESS && i < n; i++) {
		r = managed_show(places[i], all[i].at);
		if (r == CUDA_SUCCESS)
			managed_set(s, chunks[i], BOTH);
	}
	return r;
}

CUresult managed_fetch(struct span *s, size_t from, size_t to)
{
	CUresult r = CUDA_SUCCESS;
	size_t chunks[BATCH], n = 0;

	for (; r == CUDA_SUCCESS && from < to; from++) {
		if (s->chunks[from].side != DEVICE)
			continue;
		chunks[n++] = from;
		if (n == BATCH) {
			r = fetch(s, chunks, n);
			n = 0;
		}
	}
	return r == CUDA_SUCCESS && n ? fetch(s, chunks, n) : r;
}

CUresult managed_to_host(struct span *s, size_t chunk, int writes)
{
	CUresult r = managed_fetch(s, chunk, chunk + 1);
	enum side side = s->chunks[chunk].side;

	if (r != CUDA_SUCCESS || side == HOST || side == PINNED || (side == BOTH && !writes))
		return r;
	if (mprotect(managed_at(s, chunk), CHUNK_BYTES, PROT_READ | PROT_WRITE)) // of what is UNTOUCHED, the device has nothing
		return CUDA_ERROR_OUT_OF_MEMORY;
	managed_set(s, chunk, HOST);
	return r;
}

CUresult managed_unmap(struct unit *u)
{
	CUresult r = driver.cuMemUnmap(u->range.address, u->range.bytes);

	if (r != CUDA_SUCCESS)
		return r;
	r = driver.cuMemRelease(u->piece.handle);
	if (u->piece.fd >= 0)
		close(u->piece.fd);
	u->piece.fd = -1;
	u->range.count = 0;
	u->pinned = 0;
	return r;
}

CUresult managed_end(struct span *s)
{
	CUresult first = CUDA_SUCCESS;

	for (size_t i = 0; i < managed_units(s); i++) {
		CUresult r = s->units[i].range.count ? managed_unmap(&s->units[i]) : CUDA_SUCCESS;

		if (first == CUDA_SUCCESS)
			first = r;
	}
	managed_drop((void *)s->address, s->bytes);
	driver.cuMemAddressFree(s->address, s->bytes);
	return first;
}

// present gives a range a context that its device has now, and returns the range. The context in which the range was made may have ended.
static struct range *present(const struct span *s, struct range *r)
{
	CUcontext context = r->device == s->device ? s->context : context_on(r->device);

	r->context = context ? context : s->context;
	return r;
}

int managed_each(int (*f)(struct range *r, void *with), void *with)
{
	struct span *s;
	int result = 0;

	managed_lock();
	for (size_t i = 0; !result && (s = managed_span_at(i)); i++)
		for (size_t u = 0; !result && u < managed_units(s); u++)
			if (s->units[u].range.count && !s->units[u].pinned)
				result = f(present(s, &s->units[u].range), with);
	managed_unlock();
	return result;
}

static int count(struct range *r, void *with)
{
	(void)r;
	++*(size_t *)with;
	return 0;
}

static int count_foreign(struct range *r, void *with)
{
	*(size_t *)with += r->pieces->handle && !r->pieces->own;
	return 0;
}

size_t managed_pieces(void)
{
	size_t n = 0;

	managed_each(count, &n);
	return n;
}

size_t managed_foreign(void)
{
	size_t n = 0;

	managed_each(count_foreign, &n);
	return n;
}
