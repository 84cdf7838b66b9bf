// What programs ask about memory of the host and of devices, and in whose context it is.
#include "conformance.h"

#include <pthread.h>
#include <sys/mman.h>

// hosts asks about host memory.
static void hosts(void)
{
	void *p = NULL, *pages = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned flags = 77;
	ptr d = 0, a;

	context();
	DO(cuMemAlloc_v2, &a, 8 * MIB);
	for (unsigned f = 0; f < 9; f++) {
		char what[32];

		snprintf(what, sizeof(what), "%u", f);
		if (CALL(cuMemHostAlloc, what, &p, 3 * MIB, f))
			continue;
		known("h", (ptr)p, 3 * MIB);
		if (CALL(cuMemHostGetFlags, "", &flags, p) == 0)
			value("flags", flags);
		if (CALL(cuMemHostGetDevicePointer_v2, "", &d, p, 0) == 0)
			address("device", d);
		if (CALL(cuMemHostGetDevicePointer_v2, "middle", &d, (char *)p + MIB, 0) == 0)
			address("device", d);
		if (f == 2)
			attributes("pinned", (ptr)p + 5);
		CALL(cuMemGetAddressRange_v2, "", &d, NULL, p);
		CALL(cuMemFreeHost, "middle", (char *)p + 1);
		CALL(cuMemFreeHost, "", p);
	}
	CALL(cuMemHostAlloc, "0", &p, 0, 0);
	CALL(cuMemHostAlloc, "no pointer", NULL, 100, 0);
	if (CALL(cuMemAllocHost_v2, "", &p, 100) == 0)
		CALL(cuMemFreeHost, "", p);
	CALL(cuMemFreeHost, "NULL", 0);
	CALL(cuMemFreeHost, "of the device", a);
	known("r", (ptr)pages, 8 * MIB);
	if (CALL(cuMemHostRegister_v2, "", pages, 4 * MIB, 2) == 0) {
		CALL(cuMemHostRegister_v2, "again", pages, 4 * MIB, 2);
		CALL(cuMemHostRegister_v2, "overlapping", (char *)pages + 2 * MIB, 4 * MIB, 2);
		if (CALL(cuMemHostGetFlags, "", &flags, pages) == 0)
			value("flags", flags);
		if (CALL(cuMemHostGetDevicePointer_v2, "", &d, pages, 0) == 0)
			address("device", d);
		attributes("registered", (ptr)pages + 5);
		pattern(pages, 4 * MIB, 3);
		CALL(cuMemcpyHtoD_v2, "registered", a, pages, 4 * MIB);
		holds(a, 4 * MIB, 3);
		CALL(cuMemHostUnregister, "middle", (char *)pages + 4096);
		CALL(cuMemHostUnregister, "", pages);
		CALL(cuMemHostUnregister, "again", pages);
	}
	CALL(cuMemHostRegister_v2, "0", pages, 0, 0);
	CALL(cuMemHostRegister_v2, "NULL", 0, 4096, 0);
	CALL(cuMemHostRegister_v2, "of the device", a, 4096, 0);
	CALL(cuMemHostRegister_v2, "input and output", pages, 4096, 4);
	CALL(cuMemHostGetFlags, "not pinned", &flags, pages);
	CALL(cuMemHostGetFlags, "of the device", &flags, a);
	CALL(cuMemHostGetDevicePointer_v2, "not pinned", &d, pages, 0);
	CALL(cuMemHostGetDevicePointer_v2, "of the device", &d, a, 0);
	attributes("not pinned", (ptr)pages);
}

static void pointers(void)
{
	size_t sizes[] = {1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, piece + 3 * MIB};
	u64 data[2] = {0, 0}, other[2] = {0, 0};
	ptr p, q;

	context();
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char what[64];

		DO(cuMemAlloc_v2, &p, sizes[i]);
		known("a", p, sizes[i]);
		snprintf(what, sizeof(what), "first of %zu", sizes[i]);
		attributes(what, p);
		snprintf(what, sizeof(what), "last of %zu", sizes[i]);
		attributes(what, p + sizes[i] - 1);
		for (int on = 1; on >= 0; on--) {
			snprintf(what, sizeof(what), "%d, of %zu", on, sizes[i]);
			CALL(cuPointerSetAttribute, what, &on, 6, p);
			if (CALL(cuPointerGetAttribute, "6", data, 6, p + sizes[i] - 1) == 0)
				value("is", data[0] & 0xff);
		}
		// One allocation is one buffer and one block, another is another.
		DO(cuMemAlloc_v2, &q, sizes[i]);
		for (int which = 7; which <= 20; which += 13) {
			snprintf(what, sizeof(what), "%d, compared, of %zu", which, sizes[i]);
			memset(data, 0, sizeof(data));
			memset(other, 0, sizeof(other));
			if (CALL(cuPointerGetAttribute, what, data, which, p) == 0) {
				DO(cuPointerGetAttribute, other, which, p + sizes[i] - 1);
				text(" %s", data[0] == other[0] ? "one" : "several");
				DO(cuPointerGetAttribute, other, which, q);
				text(" %s", data[0] == other[0] ? "another has it too" : "another has another");
			}
		}
		DO(cuMemFree_v2, q);
		DO(cuMemFree_v2, p);
	}
	attributes("NULL", 0);
	attributes("garbage", 0x1234500000);
	DO(cuMemAlloc_v2, &p, 2 * MIB);
	CALL(cuPointerGetAttribute, "0", data, 0, p);
	CALL(cuPointerGetAttribute, "1000", data, 1000, p);
	CALL(cuPointerSetAttribute, "memory type", data, 2, p);
	CALL(cuPointerSetAttribute, "NULL", data, 6, 0);
	CALL(cuPointerGetAttributes, "none", 0, NULL, NULL, p);
	CALL(cuPointerGetAttribute, "no place", NULL, 2, p);
	CALL(cuPointerGetAttribute, "no place for the range", NULL, 11, p);
}

static void unmanaged(void)
{
	int four = 77, twice[2] = {1, 2};
	location here = {1, 0};
	u64 data = 0;
	void *to[2] = {&four, &data};
	size_t sizes[2] = {4, 4};
	ptr p;

	context();
	for (size_t bytes = 1; bytes <= 4 * MIB; bytes = bytes == 1 ? 2 * MIB : bytes * 2) {
		DO(cuMemAlloc_v2, &p, bytes);
		for (int advice = 0; advice <= 7; advice++) {
			char what[32];

			snprintf(what, sizeof(what), "%d, %zu", advice, bytes);
			CALL(cuMemAdvise, what, p, bytes, advice, 0);
			CALL(cuMemAdvise_v2, what, p, bytes, advice, (u64)here.type);
		}
		CALL(cuMemPrefetchAsync, "", p, bytes, 0, 0);
		CALL(cuMemPrefetchAsync, "to the host", p, bytes, -1, 0);
		CALL(cuMemPrefetchAsync_v2, "", p, bytes, (u64)here.type, 0, 0);
		for (int attribute = 0; attribute <= 9; attribute++) {
			char what[32];

			snprintf(what, sizeof(what), "%d", attribute);
			if (CALL(cuMemRangeGetAttribute, what, &four, 4, attribute, p, bytes) == 0)
				value("is", (u64)(int64_t)four);
		}
		CALL(cuMemRangeGetAttributes, "", to, sizes, twice, 2, p, bytes);
		CALL(cuStreamAttachMemAsync, "", 0, p, 0, 4);
		CALL(cuStreamAttachMemAsync, "all", 0, p, bytes, 1);
		DO(cuMemFree_v2, p);
	}
	CALL(cuMemAdvise, "NULL", 0, 4096, 1, 0);
	CALL(cuCtxSynchronize, "", 0);
}

static void *by_thread(void *p)
{
	context();
	CALL(cuMemFree_v2, "by another thread", *(ptr *)p);
	return NULL;
}

static void contexts(void)
{
	void *primary = context(), *made = NULL, *popped = NULL;
	u64 owner = 0;
	pthread_t thread;
	ptr p, q;

	if (CALL(cuCtxCreate_v2, "", &made, 0, 0))
		return;
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	known("a", p, 4 * MIB);
	fill(p, 4 * MIB, 4);
	DO(cuPointerGetAttribute, &owner, 1, p);
	note("its context is %s", (void *)owner == made ? "the one that was current" : "another");
	DO(cuCtxPopCurrent_v2, &popped);
	DO(cuCtxSetCurrent, primary);
	attributes("of another context", p);
	CALL(cuMemGetAddressRange_v2, "of another context", &q, NULL, p);
	holds(p, 4 * MIB, 4);
	CALL(cuMemFree_v2, "of another context", p);
	DO(cuCtxPushCurrent_v2, made);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	DO(cuMemAlloc_v2, &q, 100);
	DO(cuCtxPopCurrent_v2, &popped);
	memory_now();
	CALL(cuCtxDestroy_v2, "with memory", made);
	CALL(cuMemGetAddressRange_v2, "of a destroyed context", &owner, NULL, p);
	CALL(cuMemFree_v2, "of a destroyed context", p);
	CALL(cuMemFree_v2, "of a destroyed context, small", q);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	pthread_create(&thread, NULL, by_thread, &p);
	pthread_join(thread, NULL);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	DO(cuCtxSetCurrent, 0);
	CALL(cuMemFree_v2, "without a context", p);
	CALL(cuMemGetAddressRange_v2, "without a context", &owner, NULL, p);
	CALL(cuPointerGetAttribute, "without a context", &owner, 2, p);
	CALL(cuMemcpyDtoD_v2, "without a context", p, p + MIB, 16);
	CALL(cuDevicePrimaryCtxReset_v2, "with memory", 0);
	CALL(cuMemGetAddressRange_v2, "after a reset", &owner, NULL, p);
	context();
	CALL(cuMemGetAddressRange_v2, "after a reset, in the context", &owner, NULL, p);
	CALL(cuMemAlloc_v2, "after a reset", &p, 4 * MIB);
}

static void peers(void)
{
	int can = 77, count = 0;
	void *c = context();

	DO(cuDeviceGetCount, &count);
	if (CALL(cuDeviceCanAccessPeer, "itself", &can, 0, 0) == 0)
		value("can", can);
	CALL(cuDeviceCanAccessPeer, "no such", &can, 0, count);
	for (int i = 1; i <= 4; i++)
		CALL(cuDeviceGetP2PAttribute, "itself", &can, i, 0, 0);
	CALL(cuCtxEnablePeerAccess, "itself", c, 0);
	CALL(cuCtxEnablePeerAccess, "NULL", 0, 0);
	CALL(cuCtxEnablePeerAccess, "flags", c, 1);
	CALL(cuCtxDisablePeerAccess, "itself", c);
	CALL(cuCtxDisablePeerAccess, "NULL", 0);
}

const struct test asked_tests[] = {
	{"hosts", hosts, 30}, {"pointers", pointers, 30}, {"unmanaged", unmanaged, 30}, {"contexts", contexts, 30}, {"peers", peers, 30}, {0},
};
