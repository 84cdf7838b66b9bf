// What is asked about memory with handles.
#include "handles.h"

#define ANY (-1)

// accessible returns whether a device, or ANY, may write to what is mapped, or at least read it.
static int accessible(const struct mapping *m, int write, int device)
{
	for (int d = 0; d < devices_count; d++)
		if ((device == ANY || d == device) && (m->access[d] == CU_MEM_ACCESS_FLAGS_PROT_READWRITE || (!write && m->access[d])))
			return 1;
	return 0;
}

// all_accessible is accessible for each mapping of a range that is mapped without a gap.
static int all_accessible(CUdeviceptr pointer, size_t bytes, int write, int device)
{
	for (CUdeviceptr at = pointer; at < pointer + bytes;) {
		struct mapping *m = inside(at, 1);

		if (!m || !accessible(m, write, device))
			return 0;
		at = (CUdeviceptr)m->address + m->bytes;
	}
	return 1;
}

int virtual_holds(CUdeviceptr pointer, size_t bytes, int write) { return all_accessible(pointer, bytes, write, ANY); }

int virtual_reaches(CUdeviceptr pointer, size_t bytes, int device) { return all_accessible(pointer, bytes, 1, device); }

int virtual_find(CUdeviceptr pointer, CUdeviceptr *base, size_t *bytes, int *device)
{
	struct mapping *m = inside(pointer, 1);

	if (!m)
		return 0;
	*base = (CUdeviceptr)m->address;
	*bytes = m->bytes;
	*device = m->handle->location;
	return 1;
}

char *virtual_place(CUdeviceptr pointer, size_t *bytes)
{
	struct mapping *m = inside(pointer, 1);
	size_t in = m ? pointer - (CUdeviceptr)m->address : 0;

	if (!m || !m->place)
		return (char *)pointer;
	if (*bytes > m->bytes - in)
		*bytes = m->bytes - in;
	return m->place + in;
}

int virtual_types(CUdeviceptr pointer)
{
	struct mapping *m = inside(pointer, 1);

	return m ? m->handle->prop.requestedHandleTypes : 0;
}

struct marks *virtual_marks(CUdeviceptr pointer)
{
	struct mapping *m = inside(pointer, 1);

	return m ? &m->marks : NULL;
}

int virtual_has_host(void)
{
	for (struct mapping *m = mappings; m < mappings + MOST; m++)
		if (m->address && m->handle->host)
			return 1;
	return 0;
}

int virtual_has_imported(void)
{
	for (struct handle *h = handles; h < handles + MOST; h++)
		if (h->bytes && h->imported)
			return 1;
	return 0;
}
