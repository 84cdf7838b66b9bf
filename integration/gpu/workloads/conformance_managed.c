// Managed memory: what is asked about it, advice and prefetches, and the host and the device by turns. After it the driver saves no process of this container any more.
#define _GNU_SOURCE
#include "conformance.h"

#include <stdio.h>
#include <string.h>

static ptr alloc(size_t bytes)
{
	ptr p = 0;

	DO(cuMemAllocManaged, &p, bytes, 1);
	known("m", p, bytes);
	return p;
}

static void asked(void)
{
	size_t sizes[] = {1, 4096, 2 * MIB - 1, 2 * MIB + 1, 5 * MIB};
	u64 own = 0, other = 0;
	unsigned flags = 0;
	char handle[64];
	ptr p = 0, q, d;
	size_t n;

	context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		p = alloc(sizes[i]);
		attributes("first", p);
		attributes("last", p + sizes[i] - 1);
		if (CALL(cuMemGetAddressRange_v2, "", &d, &n, p + sizes[i] / 2) == 0) {
			address("at", d);
			value("bytes", n);
		}
		q = 0;
		DO(cuMemAllocManaged, &q, sizes[i], 1);
		for (int which = 7; which <= 20; which += 13)
			if (CALL(cuPointerGetAttribute, "compared", &own, which, p) == 0) {
				DO(cuPointerGetAttribute, &other, which, p + sizes[i] - 1);
				text(" %s", own == other ? "one" : "several");
				DO(cuPointerGetAttribute, &other, which, q);
				text(" %s", own == other ? "another has it too" : "another has another");
			}
		CALL(cuMemFree_v2, "", q);
		CALL(cuMemFree_v2, "", p);
	}
	attributes("freed", p);
	p = alloc(4 * MIB);
	flags = 1;
	CALL(cuPointerSetAttribute, "6", &flags, 6, p);
	if (CALL(cuMemHostGetFlags, "managed", &flags, p) == 0)
		value("flags", flags);
	flags = 0;
	if (CALL(cuPointerSetAttribute, "6, off", &flags, 6, p) == 0 && CALL(cuPointerGetAttribute, "6", &own, 6, p) == 0)
		value("is", own & 0xff);
	if (CALL(cuMemHostGetDevicePointer_v2, "managed", &d, p, 0) == 0)
		address("at", d);
	CALL(cuMemHostRegister_v2, "managed", p, 4096, 0);
	CALL(cuMemFreeHost, "managed", p);
	CALL(cuIpcGetMemHandle, "managed", handle, p);
	CALL(cuMemRetainAllocationHandle, "managed", &own, p);
	CALL(cuMemGetHandleForAddressRange, "managed", &flags, p, 2 * MIB, 1, 0);
	CALL(cuMemAddressFree, "managed", p, 4 * MIB);
	CALL(cuMemUnmap, "managed", p, 4 * MIB);
	CALL(cuMemFree_v2, "middle", p + MIB);
	CALL(cuMemFree_v2, "", p);
	CALL(cuMemFree_v2, "again", p);
	CALL(cuMemAllocManaged, "flags 0", &p, 4096, 0);
	CALL(cuMemAllocManaged, "flags 4", &p, 4096, 4);
	CALL(cuMemAllocManaged, "0", &p, 0, 1);
	CALL(cuMemAllocManaged, "no pointer", NULL, 4096, 1);
	if (CALL(cuMemAllocManaged, "the host's", &p, 4096, 2) == 0) {
		known("m", p, 4096);
		attributes("the host's", p);
		CALL(cuMemFree_v2, "", p);
	}
	p = alloc(4 * MIB);
	CALL(cuMemFreeAsync, "managed", p, 0);
	CALL(cuCtxSynchronize, "", 0);
}

static void advice_of(ptr p, size_t bytes)
{
	for (int attribute = 1; attribute <= 8; attribute++) {
		int is[2] = {77, 77};
		char what[32];

		snprintf(what, sizeof(what), "%d", attribute);
		if (CALL(cuMemRangeGetAttribute, what, is, attribute == 3 ? 8 : 4, attribute, p, bytes) == 0) {
			value("is", (u64)(int64_t)is[0]);
			value("and", (u64)(int64_t)is[1]);
		}
	}
}

static void advised(void)
{
	location host = {2, 0}, device = {1, 0}, none = {1, 99};
	ptr p;

	context();
	p = alloc(8 * MIB);
	advice_of(p, 8 * MIB);
	for (int advice = 0; advice <= 7; advice++)
		for (int where = -2; where <= 1; where++) {
			char what[32];

			snprintf(what, sizeof(what), "%d %d", advice, where);
			CALL(cuMemAdvise, what, p, 8 * MIB, advice, (u64)(int64_t)where);
			if (where == 0 || where == -1)
				advice_of(p, 8 * MIB);
		}
	CALL(cuMemAdvise_v2, "the host", p, 8 * MIB, 3, *(u64 *)&host);
	CALL(cuMemAdvise_v2, "the device", p, 4 * MIB, 3, *(u64 *)&device);
	advice_of(p, 4 * MIB);
	advice_of(p, 8 * MIB);
	CALL(cuMemAdvise_v2, "no such", p, 8 * MIB, 3, *(u64 *)&none);
	CALL(cuMemAdvise_v2, "no such, to no avail", p, 8 * MIB, 1, *(u64 *)&none);
	CALL(cuMemAdvise, "0", p, 0, 1, 0);
	CALL(cuMemAdvise, "past the end", p, 16 * MIB, 1, 0);
	CALL(cuMemAdvise, "a part", p + MIB + 5, 3 * MIB, 1, 0);
	advice_of(p + 2 * MIB, 2 * MIB);
	advice_of(p, 8 * MIB);
	advice_of(p, 16 * MIB);
	advice_of(p, 0);
	CALL(cuMemRangeGetAttribute, "0", &host, 4, 0, p, 4096);
	CALL(cuMemRangeGetAttribute, "9", &host, 4, 9, p, 4096);
	CALL(cuMemRangeGetAttribute, "3 bytes", &host, 3, 1, p, 4096);
	CALL(cuMemRangeGetAttribute, "8 bytes", &host, 8, 1, p, 4096);
	CALL(cuMemRangeGetAttribute, "no place", NULL, 4, 1, p, 4096);
}

static void prefetched(void)
{
	location host = {2, 0}, device = {1, 0};
	size_t bytes[2] = {2 * MIB, 2 * MIB}, first[1] = {0};
	void *stream = NULL;
	ptr p, both[2];

	context();
	DO(cuStreamCreate, &stream, 1);
	p = alloc(8 * MIB);
	for (int where = -2; where <= 1; where++) {
		char what[32];

		snprintf(what, sizeof(what), "%d", where);
		CALL(cuMemPrefetchAsync, what, p, 8 * MIB, (u64)(int64_t)where, stream);
		CALL(cuStreamSynchronize, "", stream);
		advice_of(p, 8 * MIB);
	}
	CALL(cuMemPrefetchAsync_v2, "the host", p, 8 * MIB, *(u64 *)&host, 0, stream);
	CALL(cuMemPrefetchAsync_v2, "the device", p, 4 * MIB, *(u64 *)&device, 0, stream);
	CALL(cuMemPrefetchAsync_v2, "flags", p, 4 * MIB, *(u64 *)&device, 1, stream);
	CALL(cuStreamSynchronize, "", stream);
	advice_of(p, 4 * MIB);
	advice_of(p, 8 * MIB);
	CALL(cuMemPrefetchAsync, "0", p, 0, 0, stream);
	CALL(cuMemPrefetchAsync, "past the end", p, 16 * MIB, 0, stream);
	both[0] = p;
	both[1] = p + 4 * MIB;
	CALL(cuMemPrefetchBatchAsync, "", both, bytes, 2, &device, first, 1, 0, stream);
	CALL(cuStreamSynchronize, "", stream);
	advice_of(p, 2 * MIB);
	CALL(cuMemDiscardBatchAsync, "", both, bytes, 2, 0, stream);
	CALL(cuMemDiscardAndPrefetchBatchAsync, "", both, bytes, 2, &device, first, 1, 0, stream);
	CALL(cuStreamSynchronize, "", stream);
	for (int flags = 1; flags <= 4; flags++) { // the driver does not survive 0
		char what[32];

		snprintf(what, sizeof(what), "flags %d", flags);
		CALL(cuStreamAttachMemAsync, what, stream, p, 0, flags);
	}
	CALL(cuStreamAttachMemAsync, "all", stream, p, 8 * MIB, 1);
	CALL(cuStreamAttachMemAsync, "half", stream, p, 4 * MIB, 1);
	CALL(cuStreamAttachMemAsync, "middle", stream, p + MIB, 0, 1);
	CALL(cuStreamSynchronize, "", stream);
}

// is compares memory of the device, in a copy that is not managed.
static void is(ptr device, size_t bytes, unsigned seed)
{
	static char copy[3 << 20];

	memset(copy, 0, bytes);
	DO(cuMemcpyDtoH_v2, copy, device, bytes);
	text(" device=%s", same(copy, bytes, seed) ? "right" : "wrong");
}

static void copied(void)
{
	static char here[3 << 20], there[3 << 20];
	size_t bytes[1] = {2 * MIB}, first[1] = {0}, failed = 77;
	copy_attributes how = {.order = 1};
	ptr p, d = 0, to[1], from[1];
	void *stream = NULL;

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &d, 4 * MIB);
	p = alloc(4 * MIB);
	pattern((void *)p, 3 * MIB, 7); // by the host
	CALL(cuMemcpyHtoD_v2, "from managed memory", d, p, 3 * MIB);
	is(d, 3 * MIB, 7);
	is(p, 3 * MIB, 7);
	pattern(here, 3 * MIB, 8);
	CALL(cuMemcpyHtoD_v2, "to managed memory", p + MIB, here, 3 * MIB);
	text(" host=%s", same((void *)(p + MIB), 3 * MIB, 8) ? "right" : "wrong");
	CALL(cuMemcpyDtoH_v2, "from managed memory", there, p + MIB, 3 * MIB);
	text(" host=%s", same(there, 3 * MIB, 8) ? "right" : "wrong");
	CALL(cuMemcpyDtoH_v2, "to managed memory", p, d, 3 * MIB);
	text(" host=%s", same((void *)p, 3 * MIB, 7) ? "right" : "wrong");
	CALL(cuMemcpy, "within", p + 2 * MIB, p, MIB);
	text(" host=%s", same((void *)p, MIB, 7) && !memcmp((void *)p, (void *)(p + 2 * MIB), MIB) ? "right" : "wrong");
	CALL(cuMemcpyAsync, "from the host", p, here, 2 * MIB, stream);
	CALL(cuStreamSynchronize, "", stream);
	text(" host=%s", same((void *)p, 2 * MIB, 8) ? "right" : "wrong");
	CALL(cuMemsetD8_v2, "", p + MIB, 9, MIB);
	text(" host=%d %d %d", ((unsigned char *)p)[MIB - 1], ((unsigned char *)p)[MIB], ((unsigned char *)p)[2 * MIB - 1]);
	CALL(cuMemcpyHtoD_v2, "past the end", p + 2 * MIB, here, 3 * MIB);
	pattern((void *)p, 2 * MIB, 5);
	to[0] = d;
	from[0] = p;
	CALL(cuMemcpyBatchAsync_v2, "from managed memory", to, from, bytes, 1, &how, first, 1, stream);
	if (CALL(cuStreamSynchronize, "", stream) == 0)
		is(d, 2 * MIB, 5);
	CALL(cuMemcpyBatchAsync, "to managed memory", from, to, bytes, 1, &how, first, 1, &failed, stream);
	CALL(cuStreamSynchronize, "", stream);
	text(" host=%s", same((void *)p, 2 * MIB, 5) ? "right" : "wrong");
}

const struct test managed_tests[] = {
	{"managed-asked", asked, 30}, {"managed-advised", advised, 30}, {"managed-prefetched", prefetched, 30}, {"managed-copied", copied, 30}, {0},
};
