#define _GNU_SOURCE
#include "shared.h"
#include "hand.h"
#include "host.h"
#include "multicast.h"
#include "range.h"

#include <fcntl.h>
#include <unistd.h>

static CUresult copy(int fd, int *to)
{
	*to = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return *to < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult shared_pass(struct piece *p, int *fd)
{
	CUresult r = CUDA_SUCCESS;

	if (p->passed < 0) {
		// What has come by a descriptor goes by it: the driver exports imported memory no more (1).
		r = p->own ? driver.cuMemExportToShareableHandle(&p->passed, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) : copy(p->fd, &p->passed);
		if (r != CUDA_SUCCESS)
			p->passed = -1;
	}
	return r == CUDA_SUCCESS ? copy(p->passed, fd) : r;
}

void shared_forget(struct piece *p)
{
	if (p->passed >= 0)
		close(p->passed);
	p->passed = -1;
}

struct memory *shared_imported(CUmemGenericAllocationHandle handle, int fd)
{
	CUmemAllocationProp prop = {0};
	struct memory *m;
	int own;

	// A multicast object is nowhere.
	int somewhere = driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle) == CUDA_SUCCESS &&
		(host_is(&prop.location) || (prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE && prop.location.id >= 0 && prop.location.id < MAX_DEVICES));

	if (copy(fd, &own) != CUDA_SUCCESS)
		return NULL;
	if (!somewhere)
		prop = (CUmemAllocationProp){0};
	m = virtual_new(&prop, GRANULARITY, GRANULARITY); // its size is in no answer of the driver, and in its mappings
	if (!m) {
		close(own);
		return NULL;
	}
	if (!somewhere && !multicast_import(m)) {
		virtual_end(m);
		close(own);
		return NULL;
	}
	m->imported = 1;
	m->host = somewhere && host_is(&prop.location);
	m->range.pieces[0].handle = handle;
	m->range.pieces[0].fd = own;
	return m;
}

static unsigned exports(const struct range *r)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->count; i++)
		n += r->pieces[i].passed >= 0;
	return n;
}

struct shares shared_count(void)
{
	struct shares s = {0};
	const struct memory *m;

	table_lock();
	for (size_t i = 0; table_at(i); i++)
		s.exports += exports(table_at(i));
	table_unlock();
	virtual_lock();
	for (size_t i = 0; (m = virtual_at(i)); i++) {
		s.exports += exports(&m->range);
		s.imports += m->range.count && m->imported;
		s.apart += m->range.count && m->imported && !m->range.pieces[0].handle;
	}
	virtual_unlock();
	return s;
}

// whole finds memory of the host, or a multicast object, that the process has made, by its place; NULL: there is none.
static struct memory *whole(size_t place)
{
	struct memory *m = virtual_at(place);

	return m && m->range.count && (m->host || m->multicast) && !m->imported ? m : NULL;
}

static uint32_t mark(const struct memory *m) { return m->host ? HOST_NUMBER : MULTICAST_NUMBER; }

// made finds what whole finds by its number.
static struct memory *made(uint32_t number)
{
	struct memory *m = number & (HOST_NUMBER | MULTICAST_NUMBER) ? whole(number & ~(HOST_NUMBER | MULTICAST_NUMBER)) : NULL;

	return m && number & mark(m) ? m : NULL;
}

// numbered finds the piece with a number, or that of something without pieces; NULL: there is none.
static struct piece *numbered(uint32_t number)
{
	struct cursor c = {0};
	struct memory *m = made(number);

	if (m)
		return &m->range.pieces[0];
	while (cursor_next(&c))
		if (c.number == number)
			return c.piece;
	return NULL;
}

// import finds the import with a number: NULL: there is none.
static struct memory *import(uint32_t number)
{
	struct memory *m = virtual_at(number);

	return m && m->range.count && m->imported ? m : NULL;
}

enum { PIECES, WHOLE_ONES, IMPORTS };

int shared_next(struct passed *p)
{
	struct cursor c = {0};

	for (; p->kind == PIECES && cursor_next(&c);)
		if (c.number >= p->next && c.piece->passed >= 0) {
			*p = (struct passed){c.number, PIECES, c.piece->passed, c.number + 1};
			return 1;
		}
	if (p->kind == PIECES)
		*p = (struct passed){.kind = WHOLE_ONES};
	for (; p->kind < IMPORTS + 1; p->kind++, p->next = 0)
		for (; virtual_at(p->next); p->next++) {
			const struct memory *m = p->kind == WHOLE_ONES ? whole(p->next) : import(p->next);

			if (!m || (p->kind == WHOLE_ONES ? m->range.pieces[0].passed < 0 : !m->range.pieces[0].handle))
				continue;
			p->fd = p->kind == WHOLE_ONES ? m->range.pieces[0].passed : m->range.pieces[0].fd;
			p->number = p->next++ | (p->kind == WHOLE_ONES ? mark(m) : 0);
			return 1;
		}
	p->kind = IMPORTS;
	return 0;
}

uint32_t shared_kind(const struct passed *p)
{
	const struct memory *m = p->kind == IMPORTS ? import(p->number) : made(p->number);
	uint32_t kind = p->kind == IMPORTS ? KIND_IMPORT : 0;

	if (!m || !m->multicast)
		return kind;
	return kind | multicast_devices(m) << KIND_ADDED | m->multicast->prop.numDevices << KIND_TEAM;
}

CUresult mappings_away(const struct memory *memory)
{
	CUresult r = CUDA_SUCCESS;
	struct mapping *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory == memory && !m->gone) {
			r = driver.cuMemUnmap(m->address, m->bytes);
			m->gone = r == CUDA_SUCCESS;
		}
	return r;
}

CUresult mappings_back(const struct memory *memory)
{
	CUresult r = CUDA_SUCCESS;
	struct mapping *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory == memory)
			r = mapping_bring_back(m);
	return r;
}

// let_go unmaps and releases an import. After an error it is there, or, where even that could not be done, partly.
static CUresult let_go(struct memory *m)
{
	struct piece *p = &m->range.pieces[0];
	CUresult r = mappings_away(m);

	if (r == CUDA_SUCCESS)
		r = driver.cuMemRelease(p->handle);
	if (r != CUDA_SUCCESS) {
		mappings_back(m);
		return r;
	}
	close(p->fd);
	p->handle = 0;
	p->fd = -1;
	return CUDA_SUCCESS;
}

CUresult shared_part(void)
{
	CUresult r = CUDA_SUCCESS;
	struct cursor c = {0};

	r = multicast_release();
	for (size_t i = 0; r == CUDA_SUCCESS && virtual_at(i); i++)
		if (import(i) && import(i)->range.pieces[0].handle)
			r = let_go(import(i));
	while (r == CUDA_SUCCESS && cursor_next(&c))
		shared_forget(c.piece);
	for (size_t i = 0; r == CUDA_SUCCESS && virtual_at(i); i++)
		if (whole(i))
			shared_forget(&whole(i)->range.pieces[0]);
	return r;
}

CUresult shared_export(uint32_t number, int *fd)
{
	struct piece *p = numbered(number);
	struct memory *m = made(number);
	CUresult r = m && m->multicast ? multicast_renew(m) : CUDA_SUCCESS;

	if (r != CUDA_SUCCESS)
		return r;
	return p && p->handle ? shared_pass(p, fd) : CUDA_ERROR_INVALID_VALUE;
}

CUresult shared_import(uint32_t number, int fd, int multicast)
{
	struct memory *m = import(number);
	struct piece *p;
	CUresult r;

	if (m && multicast)
		return multicast_take(m, fd);
	if (!m) {
		close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	p = &m->range.pieces[0];
	if (p->handle) { // it came in an attempt before this one, or was not taken away; the owner may know it by this descriptor alone
		if (p->fd >= 0)
			close(p->fd);
		p->fd = fd;
		return mappings_back(m);
	}
	r = driver.cuMemImportFromShareableHandle(&p->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r != CUDA_SUCCESS) {
		p->handle = 0;
		close(fd);
		return r;
	}
	p->fd = fd;
	r = mappings_back(m);
	if (r != CUDA_SUCCESS)
		let_go(m);
	return r;
}
