// Memory with handles around a checkpoint.
#define _GNU_SOURCE
#include "able.h"
#include "context.h"
#include "virtual.h"

static int writes(const struct mapping *m) { return m->write >> m->memory->range.device & 1; }

CUresult mapping_access(const struct mapping *m)
{
	CUmemAccessDesc access[MAX_DEVICES + 1];
	size_t n = 0;

	if (m->host.flags)
		access[n++] = m->host;
	for (int d = 0; d < MAX_DEVICES; d++)
		if ((m->read | m->write) >> d & 1)
			access[n++] = (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, d}, m->write >> d & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ};
	return n ? driver.cuMemSetAccess(m->address, m->bytes, access, n) : CUDA_SUCCESS;
}

// is_range is true for the mapping that is its memory's range.
static int is_range(const struct mapping *m) { return m->address == m->memory->range.address; }

// find_ranges has ranges where the program has mapped them: all of it, for its device.
static void find_ranges(void)
{
	struct memory *memory;
	struct mapping *m;

	for (size_t i = 0; (memory = virtual_at(i)); i++)
		memory->range.address = memory->reserved;
	for (size_t i = 0; (m = mapping_at(i)); i++)
		if (!m->memory->range.address && virtual_goes(m->memory) && !m->offset && m->bytes == m->memory->range.bytes && writes(m))
			m->memory->range.address = m->address;
}

int virtual_each_placed(int (*f)(const struct range *r, void *with), void *with)
{
	struct memory *m;
	int result = 0;

	virtual_lock();
	find_ranges();
	for (size_t i = 0; !result && (m = virtual_at(i)); i++)
		if (virtual_goes(m) && m->range.address)
			result = f(&m->range, with);
	virtual_unlock();
	return result;
}

// hide maps memory where the program does not know it; false where that cannot be done.
static int hide(struct memory *memory)
{
	struct mapping m = {.bytes = memory->range.bytes, .memory = memory, .write = UINT64_C(1) << memory->range.device};

	if (driver.cuMemAddressReserve(&m.address, m.bytes, 0, 0, 0) != CUDA_SUCCESS)
		return 0;
	if (mapping_map(&m) == CUDA_SUCCESS) {
		if (mapping_access(&m) == CUDA_SUCCESS) {
			memory->reserved = memory->range.address = m.address;
			return 1;
		}
		driver.cuMemUnmap(m.address, m.bytes);
	}
	driver.cuMemAddressFree(m.address, m.bytes);
	return 0;
}

// choose is true for memory that can be handed over. What copies it on its device needs a context there.
static int choose(struct memory *m, size_t most)
{
	if (!virtual_goes(m) || m->range.count > most)
		return 0;
	m->range.context = context_on(m->range.device);
	return m->range.context && (m->range.address || hide(m));
}

size_t virtual_choose(size_t most)
{
	struct memory *m;
	size_t n = 0;

	find_ranges();
	for (size_t i = 0; (m = virtual_at(i)); i++) {
		m->chosen = choose(m, most);
		if (m->chosen) {
			most -= m->range.count;
			n++;
		} else if (!m->imported && !m->host && !m->multicast) {
			if (m->range.count && m->range.pieces[0].passed >= 0)
				unknown("the driver keeps GPU memory that it shares");
			for (unsigned p = 0; p < m->range.count; p++)
				if (!m->range.pieces[p].own)
					unable("GPU memory that it got back from a checkpoint, and that there was no room to make its own, cannot be handed over again");
		}
	}
	return n;
}

CUresult virtual_unmap(void)
{
	CUresult r = CUDA_SUCCESS;
	struct mapping *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory->chosen && !is_range(m) && !m->gone) {
			r = driver.cuMemUnmap(m->address, m->bytes);
			m->gone = r == CUDA_SUCCESS;
		}
	return r;
}

// What is its memory's range has its own device's access.
CUresult mapping_bring_back(struct mapping *m)
{
	CUresult r = CUDA_SUCCESS;

	if (m->gone) {
		r = mapping_map(m);
		m->gone = r != CUDA_SUCCESS;
	}
	return r == CUDA_SUCCESS && (!is_range(m) || m->read || m->write != UINT64_C(1) << m->memory->range.device) ? mapping_access(m) : r;
}

CUresult virtual_map(void)
{
	CUresult r = CUDA_SUCCESS;
	struct mapping *m;

	for (size_t i = 0; r == CUDA_SUCCESS && (m = mapping_at(i)); i++)
		if (m->memory->chosen)
			r = mapping_bring_back(m);
	if (r != CUDA_SUCCESS)
		virtual_unmap();
	return r;
}
