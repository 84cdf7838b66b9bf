#define _GNU_SOURCE
#include "shared.h"
#include "range.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int shared_exported(struct memory *m, int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return 0;
	if (m->exported == m->exports_room) {
		size_t more = m->exports_room ? 2 * m->exports_room : 8;
		int *exports = room(more * sizeof(*exports));

		if (!exports) {
			close(copy);
			return 0;
		}
		if (m->exports) {
			memcpy(exports, m->exports, m->exported * sizeof(*exports));
			room_free(m->exports, m->exports_room * sizeof(*exports));
		}
		m->exports = exports;
		m->exports_room = more;
	}
	m->exports[m->exported++] = copy;
	return 1;
}

void shared_forget(struct memory *m)
{
	for (size_t i = 0; i < m->exported; i++)
		close(m->exports[i]);
	if (m->exports)
		room_free(m->exports, m->exports_room * sizeof(*m->exports));
	m->exports = NULL;
	m->exported = m->exports_room = 0;
}

struct memory *shared_imported(CUmemGenericAllocationHandle handle, int fd)
{
	CUmemAllocationProp prop = {0};
	struct memory *m;
	int copy;

	if (driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle) != CUDA_SUCCESS || prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop.location.id < 0 ||
	    prop.location.id >= MAX_DEVICES)
		return NULL;
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	m = copy < 0 ? NULL : virtual_new(&prop, GRANULARITY, GRANULARITY); // its size is in no answer of the driver, and in its mappings
	if (!m) {
		if (copy >= 0)
			close(copy);
		return NULL;
	}
	m->imported = 1;
	m->range.pieces[0].handle = handle;
	m->range.pieces[0].fd = copy;
	return m;
}

int shared_next(struct passed *p)
{
	const struct memory *m;

	p->place += p->begun && p->imported;
	p->begun = 1;
	for (; (m = virtual_at(p->place)); p->place++, p->next_export = 0) {
		p->imported = m->range.count && m->imported && m->range.pieces[0].handle;
		if (p->imported) {
			p->fd = m->range.pieces[0].fd;
			return 1;
		}
		if (m->range.count && p->next_export < m->exported) {
			p->fd = m->exports[p->next_export++];
			return 1;
		}
	}
	return 0;
}

int shared_any(void)
{
	struct passed p = {0};

	return shared_next(&p);
}

unsigned shared_apart(void)
{
	const struct memory *m;
	unsigned n = 0;

	for (size_t i = 0; (m = virtual_at(i)); i++)
		n += m->range.count && m->imported && !m->range.pieces[0].handle;
	return n;
}

// let_go releases an import that is mapped nowhere.
static void let_go(struct piece *p)
{
	driver.cuMemRelease(p->handle);
	close(p->fd);
	p->handle = 0;
	p->fd = -1;
}

CUresult shared_part(int *any)
{
	CUresult r = CUDA_SUCCESS, back = CUDA_SUCCESS;
	struct mapping *m;
	struct memory *memory;

	*any = shared_any() || shared_apart();
	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory->imported && !m->gone) {
			r = driver.cuMemUnmap(m->address, m->bytes);
			m->gone = r == CUDA_SUCCESS;
		}
	for (size_t i = 0; r != CUDA_SUCCESS && back == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory->imported && m->memory->range.pieces[0].handle)
			back = mapping_bring_back(m);
	if (r != CUDA_SUCCESS && back == CUDA_SUCCESS)
		return r;
	for (size_t i = 0; (m = mapping_at(i)); i++) // what could be neither unmapped nor mapped again
		if (m->memory->imported && !m->gone)
			m->gone = driver.cuMemUnmap(m->address, m->bytes) == CUDA_SUCCESS;
	for (size_t i = 0; (memory = virtual_at(i)); i++) {
		if (memory->range.count && memory->imported && memory->range.pieces[0].handle)
			let_go(&memory->range.pieces[0]);
		shared_forget(memory);
	}
	return r;
}

CUresult shared_export(size_t place, int *fd)
{
	struct memory *m = virtual_at(place);
	struct piece *p;
	CUresult r;
	int made;

	if (!m || m->range.count != 1 || m->imported || !m->range.pieces[0].handle)
		return CUDA_ERROR_INVALID_VALUE;
	if (!m->exported) {
		p = &m->range.pieces[0];
		if (p->own)
			r = driver.cuMemExportToShareableHandle(&made, p->handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
		else // what came by a descriptor goes by it
			r = (made = fcntl(p->fd, F_DUPFD_CLOEXEC, 0)) < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
		if (r != CUDA_SUCCESS)
			return r;
		r = shared_exported(m, made) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
		close(made);
		if (r != CUDA_SUCCESS)
			return r;
	}
	*fd = m->exports[0];
	return CUDA_SUCCESS;
}

// bring_back maps all mappings of an import that is there again. After an error none is mapped.
static CUresult bring_back(const struct memory *memory)
{
	CUresult r = CUDA_SUCCESS;
	struct mapping *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory == memory)
			r = mapping_bring_back(m);
	for (size_t i = 0; r != CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory == memory && !m->gone)
			m->gone = driver.cuMemUnmap(m->address, m->bytes) == CUDA_SUCCESS;
	return r;
}

CUresult shared_import(size_t place, int fd)
{
	struct memory *m = virtual_at(place);
	struct piece *p;
	CUresult r;

	if (!m || !m->range.count || !m->imported) {
		close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	p = &m->range.pieces[0];
	if (p->handle) { // in an attempt before this one
		close(fd);
		return CUDA_SUCCESS;
	}
	r = driver.cuMemImportFromShareableHandle(&p->handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r != CUDA_SUCCESS) {
		p->handle = 0;
		close(fd);
		return r;
	}
	p->fd = fd;
	r = bring_back(m);
	if (r != CUDA_SUCCESS)
		let_go(p);
	return r;
}
