// Memory of cuMemAlloc and its like: what it is, how it is copied, and which errors there are.
#include "conformance.h"

static void get_info(void)
{
	size_t free = 0, total = 0;

	CALL(cuMemGetInfo_v2, "before cuInit", &free, &total);
	DO(cuInit, 0);
	CALL(cuMemGetInfo_v2, "without a context", &free, &total);
	context();
	if (CALL(cuMemGetInfo_v2, "", &free, &total) == 0)
		text(" total=%zuMiB some=%d", total / MIB, free > 0 && free <= total);
	CALL(cuMemGetInfo_v2, "no free", NULL, &total);
	CALL(cuMemGetInfo_v2, "no total", &free, NULL);
}

// untouched adds what an error has left of a pointer that was UNSET.
#define UNSET 0x123
static void untouched(ptr p) { text(" pointer=%s", p == UNSET ? "untouched" : p ? "set" : "0"); }

static void range(const char *what, ptr at)
{
	ptr base = 0;
	size_t bytes = 0;

	if (CALL(cuMemGetAddressRange_v2, what, &base, &bytes, at) == 0) {
		address("base", base);
		value("bytes", bytes);
	}
}

// sizes are those about the borders of the driver's and the library's sizes; the last two are 300 MiB and 1 GiB with the library's own pieces.
#define SIZES {0, 1, 255, 256, 511, 512, 513, 4096, 65536, MIB, 2 * MIB - 512, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 2 * MIB + 512, 3 * MIB, 4 * MIB, \
	piece - 1, piece, piece + 1, piece + piece / 64 * 11, 4 * piece}

static void alloc(void)
{
	size_t sizes[] = SIZES;
	ptr p;

	context();
	DO(cuMemAlloc_v2, &p, 2 * MIB); // what the first allocation makes beside itself
	DO(cuMemFree_v2, p);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t bytes = sizes[i];
		char what[64];

		p = UNSET;
		snprintf(what, sizeof(what), "%zu", bytes);
		memory_now();
		if (CALL(cuMemAlloc_v2, what, &p, bytes)) {
			untouched(p);
			continue;
		}
		if (bytes >= 2 * MIB)
			room();
		value("aligned", p % 512 == 0);
		known("a", p, bytes);
		range("begin", p);
		range("middle", p + bytes / 2);
		range("last", p + bytes - 1);
		fill(p, bytes, i);
		CALL(cuMemGetAddressRange_v2, "contents", NULL, NULL, p);
		holds(p, bytes, i);
		CALL(cuMemFree_v2, "middle", p + bytes / 2 + 1);
		CALL(cuMemFree_v2, "", p);
		if (bytes >= 2 * MIB)
			room();
		range("freed", p);
	}
}

static void bounds(void)
{
	size_t sizes[] = {1, 512, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, piece + 1};
	char some[64] = {0};
	ptr base = 0, p;
	size_t n = 0;

	context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char what[64];

		DO(cuMemAlloc_v2, &p, sizes[i]);
		known("a", p, sizes[i]);
		snprintf(what, sizeof(what), "no base, %zu", sizes[i]);
		if (CALL(cuMemGetAddressRange_v2, what, NULL, &n, p) == 0)
			value("bytes", n);
		snprintf(what, sizeof(what), "no bytes, %zu", sizes[i]);
		if (CALL(cuMemGetAddressRange_v2, what, &base, NULL, p) == 0)
			address("base", base);
		snprintf(what, sizeof(what), "last byte, %zu", sizes[i]);
		CALL(cuMemcpyHtoD_v2, what, p + sizes[i] - 1, some, 1);
		snprintf(what, sizeof(what), "all but for one too many, to 2 MiB, %zu", sizes[i]);
		CALL(cuMemsetD8_v2, what, p, 7, (sizes[i] + 2 * MIB - 1) / (2 * MIB) * 2 * MIB + 1);
		DO(cuMemFree_v2, p);
	}
	DO(cuMemAlloc_v2, &p, 2 * MIB + 1);
	known("a", p, 2 * MIB + 1);
	range("one past the end", p + 2 * MIB + 1);
	range("before", p - 1);
}

static void bounds_exact(void)
{
	ptr p;

	context();
	DO(cuMemAlloc_v2, &p, 2 * MIB + 1);
	CALL(cuMemsetD8_v2, "one past the end", p, 7, 2 * MIB + 2);
	CALL(cuCtxSynchronize, "", 0);
}

static void errors(void)
{
	size_t free = 0, total = 0;
	ptr p = UNSET;
	char here[512];

	CALL(cuMemAlloc_v2, "before cuInit", &p, 2 * MIB);
	CALL(cuMemFree_v2, "before cuInit", p);
	DO(cuInit, 0);
	CALL(cuMemAlloc_v2, "without a context", &p, 2 * MIB);
	CALL(cuMemAlloc_v2, "without a context, small", &p, 1);
	CALL(cuMemFree_v2, "without a context", 0);
	untouched(p);
	context();
	DO(cuMemGetInfo_v2, &free, &total);
	CALL(cuMemAlloc_v2, "0", &p, 0);
	CALL(cuMemAlloc_v2, "all and one", &p, total + 1);
	if (CALL(cuMemAlloc_v2, "all", &p, total) == 0)
		DO(cuMemFree_v2, p);
	p = UNSET;
	CALL(cuMemAlloc_v2, "2^47", &p, (size_t)1 << 47);
	CALL(cuMemAlloc_v2, "2^63", &p, (size_t)1 << 63);
	CALL(cuMemAlloc_v2, "2^64 - 1", &p, SIZE_MAX);
	untouched(p);
	CALL(cuMemFree_v2, "NULL", 0);
	CALL(cuMemFree_v2, "garbage", 0x1234500000);
	CALL(cuMemFree_v2, "host", here);
	CALL(cuMemGetAddressRange_v2, "NULL", &p, &total, 0);
	CALL(cuMemGetAddressRange_v2, "host", &p, &total, here);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	CALL(cuMemFree_v2, "", p);
	CALL(cuMemFree_v2, "again", p);
	CALL(cuMemsetD8_v2, "freed", p, 1, 1);
	CALL(cuMemAlloc_v2, "NULL, small", NULL, 1);
	CALL(cuMemAlloc_v2, "NULL", NULL, 2 * MIB);
}

static void pitch(void)
{
	static const struct { size_t width, height; unsigned element; } all[] = {
		{1, 1, 4}, {1, 1, 16}, {512, 4096, 4}, {513, 4096, 8}, {100, 100000, 16}, {1 << 20, 3, 4}, {(1 << 20) + 1, 2, 4}, {0, 5, 4}, {5, 0, 4}, {5, 5, 0}, {5, 5, 1}, {5, 5, 2}, {5, 5, 3},
		{5, 5, 32}, {3000, 3000, 3}, {(size_t)1 << 40, (size_t)1 << 30, 4}, {(size_t)1 << 31, 2, 4},
	};
	size_t p = 0;
	ptr at = 0;

	context();
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		char what[96];

		snprintf(what, sizeof(what), "%zu x %zu, %u", all[i].width, all[i].height, all[i].element);
		p = 77;
		at = UNSET;
		if (CALL(cuMemAllocPitch_v2, what, &at, &p, all[i].width, all[i].height, all[i].element) == 0) {
			known("a", at, p * all[i].height);
			value("pitch", p);
			range("", at);
			range("last", at + p * all[i].height - 1);
			DO(cuMemFree_v2, at);
		} else {
			value("pitch", p);
			untouched(at);
		}
	}
	CALL(cuMemAllocPitch_v2, "no pointer", NULL, &p, 1000, 1000, 4);
	CALL(cuMemAllocPitch_v2, "no pitch", &at, NULL, 3000, 3000, 4);
}

static void copies(void)
{
	static const size_t sizes[] = {0, 1, 3, 511, 4096, 65537, 2 * MIB - 1, 2 * MIB, 3 * MIB + 5};
	char *from = malloc(4 * MIB), *to = malloc(4 * MIB);
	void *stream = NULL;
	ptr a, b, small;

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &a, piece + 4 * MIB);
	DO(cuMemAlloc_v2, &b, 4 * MIB);
	DO(cuMemAlloc_v2, &small, 70000);
	pattern(from, 4 * MIB, 1);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t n = sizes[i];
		ptr across = a + piece - n / 2;
		char what[32];

		snprintf(what, sizeof(what), "%zu", n);
#define CHECK(call, ...) do { memset(to, 0, n); call; DO(cuStreamSynchronize, stream); if (!strncmp(#call, "CALL", 4)) { __VA_ARGS__; text(" %s", same(to, n, 1) ? "right" : "wrong"); } } while (0)
		CHECK(CALL(cuMemcpyHtoD_v2, what, across, from, n), DO(cuMemcpyDtoH_v2, to, across, n));
		CHECK(CALL(cuMemcpyDtoH_v2, what, to, across, n), (void)0);
		CHECK(CALL(cuMemcpyDtoD_v2, what, b, across, n), DO(cuMemcpyDtoH_v2, to, b, n));
		CHECK(CALL(cuMemcpy, what, to, b, n), (void)0);
		CHECK(CALL(cuMemcpyHtoDAsync_v2, what, across, from, n, stream), DO(cuStreamSynchronize, stream); DO(cuMemcpyDtoH_v2, to, across, n));
		CHECK(CALL(cuMemcpyDtoHAsync_v2, what, to, across, n, stream), (void)0);
		CHECK(CALL(cuMemcpyDtoDAsync_v2, what, b, across, n, stream), DO(cuStreamSynchronize, stream); DO(cuMemcpyDtoH_v2, to, b, n));
		CHECK(CALL(cuMemcpyAsync, what, to, b, n, stream), (void)0);
		CHECK(CALL(cuMemcpyPeer, what, b, context(), across, context(), n), DO(cuMemcpyDtoH_v2, to, b, n));
		CHECK(CALL(cuMemcpyPeerAsync, what, b, context(), across, context(), n, stream), DO(cuStreamSynchronize, stream); DO(cuMemcpyDtoH_v2, to, b, n));
		if (n <= 70000)
			CHECK(CALL(cuMemcpyDtoD_v2, "small", small, across, n), DO(cuMemcpyDtoH_v2, to, small, n));
	}
	CALL(cuMemcpyHtoD_v2, "NULL", 0, from, 16);
	CALL(cuMemcpyDtoH_v2, "NULL", to, 0, 16);
	CALL(cuMemcpyDtoD_v2, "NULL", b, 0, 16);
	CALL(cuMemcpyHtoD_v2, "past the end", b, from, 4 * MIB + 1);
	CALL(cuMemcpyDtoD_v2, "past the end", b, a, 4 * MIB + 1);
	CALL(cuMemcpyHtoDAsync_v2, "past the end", b, from, 4 * MIB + 1, stream);
	CALL(cuMemcpyDtoD_v2, "overlapping", b, b + 1, 1000);
	CALL(cuMemcpyHtoD_v2, "a host's address", to, from, 16);
	CALL(cuStreamSynchronize, "", stream);
}

static void freed(void)
{
	char here[16] = {0};
	ptr a;

	context();
	DO(cuMemAlloc_v2, &a, 4 * MIB);
	DO(cuMemFree_v2, a);
	CALL(cuMemcpyHtoD_v2, "freed", a, here, 16);
	CALL(cuMemcpyDtoH_v2, "freed", here, a, 16);
	CALL(cuMemcpyDtoD_v2, "freed", a, a + MIB, 16);
	CALL(cuMemcpyHtoDAsync_v2, "freed", a, here, 16, 0);
	CALL(cuCtxSynchronize, "", 0);
	attributes("freed", a);
}

static void batches(void)
{
	ptr a, b, to[2], from[2], at[2];
	size_t bytes[2] = {1000, 3 * MIB}, first[1] = {0}, failed = 77;
	copy_attributes how = {.order = 1};
	location here = {1, 0};
	void *stream = NULL;

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &a, 4 * MIB);
	DO(cuMemAlloc_v2, &b, 4 * MIB);
	fill(a, 3 * MIB, 5);
	to[0] = b + 3 * MIB;
	to[1] = b;
	from[0] = from[1] = at[0] = a;
	at[1] = b;
	CALL(cuMemcpyBatchAsync, "", to, from, bytes, 2, &how, first, 1, &failed, stream);
	CALL(cuMemcpyBatchAsync_v2, "", to, from, bytes, 2, &how, first, 1, stream);
	if (CALL(cuStreamSynchronize, "", stream) == 0)
		holds(b, 3 * MIB, 5);
	CALL(cuMemcpy3DBatchAsync, "none", 0, NULL, &failed, 0, stream);
	CALL(cuMemcpy3DBatchAsync_v2, "none", 0, NULL, 0, stream);
	CALL(cuMemPrefetchBatchAsync, "not managed", at, bytes, 2, &here, first, 1, 0, stream);
	CALL(cuMemDiscardBatchAsync, "not managed", at, bytes, 2, 0, stream);
	CALL(cuMemDiscardAndPrefetchBatchAsync, "not managed", at, bytes, 2, &here, first, 1, 0, stream);
	CALL(cuMemBatchDecompressAsync, "none", NULL, 0, 0, &failed, stream);
	CALL(cuMemMapArrayAsync, "none", NULL, 0, stream);
	CALL(cuFlushGPUDirectRDMAWrites, "", 0, 100);
	CALL(cuStreamSynchronize, "", stream);
}

// per_thread calls what programs are compiled to use whose default stream is each thread's own.
static void per_thread(void)
{
	size_t sizes[] = {100, 4 * MIB, piece + 4 * MIB};
	char *from = malloc(MIB), *to = malloc(MIB);
	void *pool = NULL;
	ptr a, b;

	context();
	pattern(from, MIB, 14);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		size_t n = sizes[i] < MIB ? sizes[i] : MIB;

		DO(cuMemAlloc_v2, &a, sizes[i]);
		DO(cuMemAlloc_v2, &b, sizes[i]);
		CALL(cuMemsetD8_v2_ptds, "", a, 1, n);
		CALL(cuMemsetD32_v2_ptds, "", a, 1, n / 4);
		CALL(cuMemcpyHtoD_v2_ptds, "", a, from, n);
		CALL(cuMemcpyDtoD_v2_ptds, "", b, a, n);
		CALL(cuMemcpyDtoH_v2_ptds, "", to, b, n);
		text(" %s", same(to, n, 14) ? "right" : "wrong");
		CALL(cuMemcpy_ptds, "", b, a, n);
		CALL(cuMemsetD8Async_ptsz, "", a, 1, n, 0);
		CALL(cuMemcpyHtoDAsync_v2_ptsz, "", a, from, n, 0);
		CALL(cuMemcpyDtoDAsync_v2_ptsz, "", b, a, n, 0);
		CALL(cuMemcpyAsync_ptsz, "", b, a, n, 0);
		CALL(cuMemcpyDtoHAsync_v2_ptsz, "", to, b, n, 0);
		CALL(cuStreamSynchronize, "", 2); // CU_STREAM_PER_THREAD
		text(" %s", same(to, n, 14) ? "right" : "wrong");
		CALL(cuMemPrefetchAsync_ptsz, "not managed", a, n, 0, 0);
		CALL(cuStreamAttachMemAsync_ptsz, "not managed", 0, a, 0, 4);
		CALL(cuMemFreeAsync_ptsz, "of cuMemAlloc", a, 0);
		range("freed", a);
		DO(cuMemFree_v2, b);
	}
	if (CALL(cuMemAllocAsync_ptsz, "", &a, 3 * MIB, 0) == 0)
		CALL(cuMemFreeAsync_ptsz, "of the pool", a, 0);
	if (DO(cuDeviceGetDefaultMemPool, &pool, 0) == 0 && CALL(cuMemAllocFromPoolAsync_ptsz, "", &a, 3 * MIB, pool, 0) == 0)
		CALL(cuMemFreeAsync_ptsz, "of a pool", a, 0);
	CALL(cuCtxSynchronize, "", 0);
}

static void memsets(void)
{
	unsigned char *to = malloc(4 * MIB);
	void *stream = NULL;
	ptr a, e;

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &a, piece + 4 * MIB);
	e = a + piece - 512;
#define SET(name, n, byte, ...) do { CALL(name, "", __VA_ARGS__); DO(cuStreamSynchronize, stream); DO(cuMemcpyDtoH_v2, to, e, n); int ok = 1; for (size_t i = 0; i < (n); i++) ok &= to[i] == (byte); text(" %s", ok ? "right" : "wrong"); } while (0)
	SET(cuMemsetD8_v2, 2000, 0x5a, e, 0x5a, 2000);
	SET(cuMemsetD16_v2, 2000, 0x33, e, 0x3333, 1000);
	SET(cuMemsetD32_v2, 2000, 0x11, e, 0x11111111, 500);
	SET(cuMemsetD8Async, 2000, 0x5b, e, 0x5b, 2000, stream);
	SET(cuMemsetD16Async, 2000, 0x34, e, 0x3434, 1000, stream);
	SET(cuMemsetD32Async, 2000, 0x12, e, 0x12121212, 500, stream);
	SET(cuMemsetD2D8_v2, 1024, 0x21, e, 1024, 0x21, 1024, 3);
	SET(cuMemsetD2D16_v2, 1024, 0x22, e, 1024, 0x2222, 512, 3);
	SET(cuMemsetD2D32_v2, 1024, 0x23, e, 1024, 0x23232323, 256, 3);
	SET(cuMemsetD2D8Async, 1024, 0x24, e, 1024, 0x24, 1024, 3, stream);
	SET(cuMemsetD2D16Async, 1024, 0x25, e, 1024, 0x2525, 512, 3, stream);
	SET(cuMemsetD2D32Async, 1024, 0x26, e, 1024, 0x26262626, 256, 3, stream);
	CALL(cuMemsetD16_v2, "odd", a + 1, 1, 10);
	CALL(cuMemsetD32_v2, "not aligned", a + 2, 1, 10);
	CALL(cuMemsetD8_v2, "none", a, 1, 0);
	CALL(cuMemsetD8_v2, "NULL", 0, 1, 1);
	CALL(cuMemsetD8_v2, "past the end", a, 1, piece + 6 * MIB + 1);
	CALL(cuMemsetD8Async, "past the end", a, 1, piece + 6 * MIB + 1, stream);
	CALL(cuCtxSynchronize, "", 0);
}

const struct test memory_tests[] = {
	{"info", get_info, 30}, {"alloc", alloc, 60}, {"bounds", bounds, 30}, {"bounds-exact", bounds_exact, 30}, {"errors", errors, 30},
	{"pitch", pitch, 30}, {"copies", copies, 60}, {"freed", freed, 30}, {"batches", batches, 30}, {"per-thread", per_thread, 30}, {"memsets", memsets, 30}, {0},
};
