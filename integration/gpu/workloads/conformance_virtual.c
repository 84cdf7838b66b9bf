// Memory with handles, and what memory of cuMemAlloc has of them.
#define _GNU_SOURCE
#include "conformance.h"

#include <fcntl.h>

static alloc_prop prop(int handles) { return (alloc_prop){.type = 1, .handles = handles, .where = {1, 0}}; }

// granularity of the first device, which the rest of a test relies on.
static size_t granularity(void)
{
	alloc_prop p = prop(0);
	size_t bytes = 0;

	DO(cuMemGetAllocationGranularity, &bytes, &p, 0);
	return bytes ? bytes : 2 * MIB;
}

static void virtual(void)
{
	access_desc access = {{1, 0}, 3};
	location here = {1, 0};
	alloc_prop p = prop(1), got;
	ptr at = 0, second = 0;
	u64 h = 0, retained = 0, flags = 0;
	size_t g = 0;

	context();
	for (int option = 0; option < 3; option++) {
		if (CALL(cuMemGetAllocationGranularity, option ? option > 1 ? "2" : "recommended" : "minimum", &g, &p, option) == 0)
			value("bytes", g);
	}
	g = granularity();
	CALL(cuMemAddressReserve, "not a multiple", &at, g + 1, 0, 0, 0);
	CALL(cuMemAddressReserve, "0", &at, 0, 0, 0, 0);
	if (CALL(cuMemAddressReserve, "", &at, 4 * g, 0, 0, 0) == 0)
		text(" aligned=%d", at % g == 0);
	known("v", at, 4 * g);
	CALL(cuMemCreate, "not a multiple", &h, g + 1, &p, 0);
	memory_now();
	if (CALL(cuMemCreate, "", &h, 2 * g, &p, 0) == 0)
		room();
	CALL(cuMemMap, "offset", at, g, g, h, 0);
	CALL(cuMemMap, "too large", at, 4 * g, 0, h, 0);
	CALL(cuMemMap, "", at, 2 * g, 0, h, 0);
	CALL(cuMemMap, "twice", at, 2 * g, 0, h, 0);
	if (CALL(cuMemGetAccess, "before", &flags, &here, at) == 0)
		value("flags", flags);
	CALL(cuMemSetAccess, "part", at, g, &access, 1);
	CALL(cuMemSetAccess, "", at, 2 * g, &access, 1);
	if (CALL(cuMemGetAccess, "", &flags, &here, at) == 0)
		value("flags", flags);
	memset(&got, 0, sizeof(got));
	if (CALL(cuMemGetAllocationPropertiesFromHandle, "", &got, h) == 0)
		text(" type=%d handles=%d where=%d/%d rdma=%d", got.type, got.handles, got.where.type, got.where.id, got.flags.rdma);
	fill(at, 2 * g, 6);
	CALL(cuMemMap, "elsewhere too", at + 2 * g, 2 * g, 0, h, 0);
	CALL(cuMemSetAccess, "elsewhere", at + 2 * g, 2 * g, &access, 1);
	holds(at + 2 * g, 2 * g, 6);
	if (CALL(cuMemRetainAllocationHandle, "", &retained, at) == 0) {
		text(" %s", retained == h ? "the same" : "another");
		CALL(cuMemRelease, "retained", retained);
	}
	attributes("mapped", at + 5);
	if (CALL(cuMemGetAddressRange_v2, "", &second, &g, at + 5) == 0) {
		address("base", second);
		value("bytes", g);
	}
	g = granularity();
	CALL(cuMemFree_v2, "mapped", at);
	CALL(cuMemFreeAsync, "mapped", at, 0);
	CALL(cuMemRelease, "", h);
	CALL(cuMemAddressFree, "mapped", at, 4 * g);
	CALL(cuMemUnmap, "part", at, g / 2);
	CALL(cuMemUnmap, "", at, 2 * g);
	CALL(cuMemUnmap, "elsewhere", at + 2 * g, 2 * g);
	room();
	CALL(cuMemUnmap, "again", at, 2 * g);
	CALL(cuMemAddressFree, "part", at, g);
	CALL(cuMemAddressFree, "", at, 4 * g);
	CALL(cuMemRelease, "again", h);
	CALL(cuMemRelease, "0", 0);
	CALL(cuMemCreate, "no device", &h, g, (&(alloc_prop){.type = 1, .where = {1, 99}}), 0);
	CALL(cuMemCreate, "all", &h, (size_t)1 << 46, &p, 0);
}

// segments maps many handles side by side in a range that has room for more, as PyTorch does, and lets go of them in other orders.
static void segments(void)
{
	access_desc access = {{1, 0}, 3};
	location here = {1, 0};
	alloc_prop p = prop(0), large = prop(1), got = {0};
	u64 h[4] = {0}, retained = 0, flags = 0;
	ptr at = 0, base = 0;
	size_t g, bytes = 0;
	int fd = -1;

	context();
	g = granularity();
	DO(cuMemAddressReserve, &at, 8 * g, 0, 0, 0);
	known("s", at, 8 * g);
	for (int i = 3; i >= 0; i--) {
		DO(cuMemCreate, &h[i], g, &p, 0);
		CALL(cuMemMap, i ? "behind" : "first", at + i * g, g, 0, h[i], 0);
	}
	CALL(cuMemSetAccess, "with a gap behind", at, 5 * g, &access, 1);
	CALL(cuMemSetAccess, "half of the last", at, 3 * g + g / 2, &access, 1);
	CALL(cuMemSetAccess, "all", at, 4 * g, &access, 1);
	fill(at, 4 * g, 8);
	holds(at, 4 * g, 8);
	if (CALL(cuMemGetAddressRange_v2, "third", &base, &bytes, at + 2 * g + 5) == 0) {
		address("base", base);
		value("bytes", bytes);
	}
	attributes("third", at + 2 * g + 5);
	CALL(cuMemRelease, "mapped", h[1]);
	if (CALL(cuMemGetAllocationPropertiesFromHandle, "released", &got, h[1]) == 0)
		text(" type=%d handles=%d", got.type, got.handles);
	CALL(cuMemMap, "released", at + 4 * g, g, 0, h[1], 0);
	holds(at, 4 * g, 8);
	if (CALL(cuMemRetainAllocationHandle, "released", &retained, at + g) == 0) {
		text(" %s", retained == h[1] ? "the same" : "another");
		CALL(cuMemMap, "retained", at + 4 * g, g, 0, retained, 0);
		CALL(cuMemSetAccess, "retained", at + 4 * g, g, &access, 1);
		holds(at + 4 * g, g, 8);
		CALL(cuMemRelease, "retained", retained);
	}
	CALL(cuMemSetAccess, "to read", at, g, (&(access_desc){here, 1}), 1);
	if (CALL(cuMemGetAccess, "to read", &flags, &here, at) == 0)
		value("flags", flags);
	CALL(cuMemSetAccess, "none", at, g, (&(access_desc){here, 0}), 1);
	if (CALL(cuMemGetAccess, "none", &flags, &here, at) == 0)
		value("flags", flags);
	CALL(cuMemUnmap, "with a gap behind", at, 6 * g);
	CALL(cuMemUnmap, "two", at + g, 2 * g);
	CALL(cuMemUnmap, "with a gap", at, 4 * g);
	CALL(cuMemUnmap, "first", at, g);
	CALL(cuMemUnmap, "two more", at + 3 * g, 2 * g);
	for (int i = 0; i < 4; i++)
		CALL(cuMemRelease, i == 1 ? "again" : "", h[i]);
	CALL(cuMemAddressFree, "", at, 8 * g);
	if (DO(cuMemCreate, &h[0], 4 * piece + g, &large, 0))
		return;
	CALL(cuMemExportToShareableHandle, "large", &fd, h[0], 1, 0);
	DO(cuMemAddressReserve, &at, 4 * piece + g, 0, 0, 0);
	CALL(cuMemMap, "large", at, 4 * piece + g, 0, h[0], 0);
	CALL(cuMemUnmap, "part of a large one", at, 4 * piece);
	CALL(cuMemSetAccess, "part of a large one", at, 4 * piece, &access, 1);
	CALL(cuMemSetAccess, "large", at, 4 * piece + g, &access, 1);
	if (CALL(cuMemGetAddressRange_v2, "large", &base, &bytes, at + 4 * piece) == 0)
		value("exact", base == at && bytes == 4 * piece + g);
	CALL(cuMemRelease, "large", h[0]);
	CALL(cuMemUnmap, "large", at, 4 * piece + g);
	DO(cuMemAddressFree, at, 4 * piece + g);
}

// released releases a handle more often than there are references to it, while its memory is mapped.
static void released(void)
{
	access_desc access = {{1, 0}, 3};
	alloc_prop p = prop(0);
	ptr at = 0;
	u64 h = 0;
	size_t g;

	context();
	g = granularity();
	DO(cuMemAddressReserve, &at, 2 * g, 0, 0, 0);
	DO(cuMemCreate, &h, g, &p, 0);
	DO(cuMemMap, at, g, 0, h, 0);
	DO(cuMemSetAccess, at, g, &access, 1);
	fill(at, g, 9);
	CALL(cuMemRelease, "mapped", h);
	CALL(cuMemRelease, "mapped, again", h);
	holds(at, g, 9);
	CALL(cuMemMap, "mapped, released twice", at + g, g, 0, h, 0);
	CALL(cuMemUnmap, "released twice", at, g);
	CALL(cuMemRelease, "unmapped", h);
}

// exported passes memory through a descriptor of its own.
static void exported(void)
{
	access_desc access = {{1, 0}, 3};
	alloc_prop p = prop(1), none = prop(0);
	size_t g;
	u64 h = 0, h2 = 0, imported = 0;
	ptr at = 0;
	int fd = -1;

	context();
	g = granularity();
	DO(cuMemAddressReserve, &at, 2 * g, 0, 0, 0);
	DO(cuMemCreate, &h, g, &p, 0);
	DO(cuMemCreate, &h2, g, &none, 0);
	DO(cuMemMap, at, g, 0, h, 0);
	DO(cuMemSetAccess, at, g, &access, 1);
	fill(at, g, 7);
	CALL(cuMemExportToShareableHandle, "not made for it", &fd, h2, 1, 0);
	CALL(cuMemExportToShareableHandle, "0", &fd, 0, 1, 0);
	CALL(cuMemExportToShareableHandle, "another type", &fd, h, 2, 0);
	if (CALL(cuMemExportToShareableHandle, "", &fd, h, 1, 0) == 0)
		text(" valid=%d", fcntl(fd, F_GETFD) >= 0);
	CALL(cuMemImportFromShareableHandle, "none", &imported, (int64_t)-1, 1);
	CALL(cuMemImportFromShareableHandle, "a pipe", &imported, 1, 1);
	if (CALL(cuMemImportFromShareableHandle, "", &imported, fd, 1) == 0) {
		CALL(cuMemExportToShareableHandle, "imported", &fd, imported, 1, 0);
		CALL(cuMemMap, "imported", at + g, g, 0, imported, 0);
		CALL(cuMemSetAccess, "imported", at + g, g, &access, 1);
		holds(at + g, g, 7);
		attributes("imported", at + g);
		CALL(cuMemUnmap, "imported", at + g, g);
		CALL(cuMemRelease, "imported", imported);
	}
	external_desc d = {.type = 1, .of.fd = fd, .bytes = g};
	void *external = NULL;

	CALL(cuImportExternalMemory, "NULL", NULL, NULL);
	CALL(cuImportExternalMemory, "type 0", &external, (&(external_desc){.type = 0, .of.fd = fd, .bytes = g}));
	CALL(cuImportExternalMemory, "no descriptor", &external, (&(external_desc){.type = 1, .of.fd = -1, .bytes = g}));
	if (CALL(cuImportExternalMemory, "own memory", &external, &d) == 0) {
		buffer_desc whole = {.bytes = g};
		ptr buffer = 0;

		if (CALL(cuExternalMemoryGetMappedBuffer, "", &buffer, external, &whole) == 0)
			holds(buffer, g, 7);
		CALL(cuExternalMemoryGetMappedMipmappedArray, "NULL", NULL, external, NULL);
		CALL(cuDestroyExternalMemory, "", external);
	}
	CALL(cuExternalMemoryGetMappedBuffer, "NULL", NULL, NULL, NULL);
	CALL(cuExternalMemoryGetMappedMipmappedArray, "NULL", NULL, NULL, NULL);
	CALL(cuDestroyExternalMemory, "NULL", NULL);
}

// retained asks for handles and descriptors of memory of cuMemAlloc.
static void retained(void)
{
	size_t sizes[] = {1, 2 * MIB, 2 * MIB + 1, piece + 2 * MIB};
	location here = {1, 0};
	u64 flags = 0;

	context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char what[64];
		size_t all = (sizes[i] + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
		int fd = -1;
		u64 h = 0;
		ptr p = 0;

		DO(cuMemAlloc_v2, &p, sizes[i]);
		snprintf(what, sizeof(what), "%zu", sizes[i]);
		if (CALL(cuMemGetAccess, what, &flags, &here, p) == 0)
			value("flags", flags);
		CALL(cuMemUnmap, what, p, all);
		CALL(cuMemAddressFree, what, p, all);
		CALL(cuMemSetAccess, what, p, all, (&(access_desc){here, 1}), 1);
		CALL(cuMemMap, what, p, all, 0, 0, 0);
		if (CALL(cuMemRetainAllocationHandle, what, &h, p) == 0)
			CALL(cuMemRelease, what, h);
		snprintf(what, sizeof(what), "descriptor, %zu", sizes[i]);
		if (CALL(cuMemGetHandleForAddressRange, what, &fd, p, all, 1, 0) == 0)
			close(fd);
		snprintf(what, sizeof(what), "descriptor of a page, %zu", sizes[i]);
		if (CALL(cuMemGetHandleForAddressRange, what, &fd, p, 65536, 1, 0) == 0)
			close(fd);
		CALL(cuMemFree_v2, what, p);
	}
	CALL(cuMemRetainAllocationHandle, "NULL", &flags, NULL);
	CALL(cuMemRetainAllocationHandle, "host", &flags, &here);
}

static void granularities(void)
{
	multicast_prop p = {.devices = 2, .bytes = 2 * MIB, .handles = 1};
	size_t bytes = 0;

	context();
	for (int option = 0; option < 2; option++)
		if (CALL(cuMulticastGetGranularity, option ? "recommended" : "minimum", &bytes, &p, option) == 0)
			value("bytes", bytes);
	CALL(cuMulticastGetGranularity, "NULL", NULL, &p, 0);
}

const struct test virtual_tests[] = {
	{"virtual", virtual, 30}, {"segments", segments, 30}, {"released", released, 30}, {"exported", exported, 30}, {"retained", retained, 30}, {"granularities", granularities, 30}, {0},
};
