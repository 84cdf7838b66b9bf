// Pools of managed memory. After it the driver saves no process of this container any more.
#define _GNU_SOURCE
#include "conformance.h"

#include <stdio.h>

static void made(void)
{
	static const location places[] = {{1, 0}, {1, 5}, {1, -1}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {0, 0}};
	pool_props props = {.type = 2, .where = {1, 0}};
	void *pool = NULL, *standard = NULL, *set = NULL;
	char name[64];

	context();
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		location l = places[i];

		props.where = l;
		snprintf(name, sizeof(name), "%d %d", l.type, l.id);
		if (CALL(cuMemPoolCreate, name, &pool, &props) == 0)
			CALL(cuMemPoolDestroy, name, pool);
		if (CALL(cuMemGetDefaultMemPool, name, &standard, &l, 2) != 0)
			continue;
		if (CALL(cuMemGetMemPool, name, &set, &l, 2) == 0)
			text(" %s", set == standard ? "the default" : "another");
		CALL(cuMemPoolDestroy, "the default", standard);
	}
	props = (pool_props){.type = 2, .where = {1, 0}, .handles = 1};
	CALL(cuMemPoolCreate, "for others", &pool, &props);
	CALL(cuMemPoolCreate, "no place", NULL, &props);
}

static void used(void)
{
	static const access_desc accesses[] = {{{1, 0}, 3}, {{1, 0}, 1}, {{1, 0}, 0}, {{2, 0}, 3}, {{2, 0}, 0}, {{1, 5}, 3}};
	location here = {1, 0}, host = {2, 0};
	pool_props props = {.type = 2, .where = {1, 0}};
	void *stream = NULL, *pool = NULL, *set = NULL, *standard = NULL;
	ptr p = 0, q = 5;
	u64 keep = MIB, zero = 0;
	int flags = 77, off = 0;
	char name[64];

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemPoolCreate, &pool, &props);
	pool_values("new", pool, 10);
	CALL(cuMemAllocFromPoolAsync, "0", &q, 0, pool, stream);
	value("is", q);
	CALL(cuMemAllocFromPoolAsync, "NULL", NULL, 100, pool, stream);
	if (CALL(cuMemAllocFromPoolAsync, "", &p, 5 * MIB, pool, stream) == 0) {
		known("p", p, 5 * MIB);
		CALL(cuStreamSynchronize, "", stream);
		fill(p, 5 * MIB, 8);
		holds(p, 5 * MIB, 8);
		attributes("of the pool", p);
		pool_values("with memory", pool, 4);
		CALL(cuMemAdvise_v2, "of the pool", p, MIB, 1, *(u64 *)&here);
		CALL(cuStreamAttachMemAsync, "of the pool", stream, p, 0, 1);
		CALL(cuMemPrefetchAsync_v2, "to the device", p, 5 * MIB, *(u64 *)&here, 0, stream);
		CALL(cuMemPrefetchAsync_v2, "to the host", p, 5 * MIB, *(u64 *)&host, 0, stream);
		CALL(cuStreamSynchronize, "", stream);
		for (int attribute = 1; attribute <= 8; attribute++) {
			int is = 77;

			snprintf(name, sizeof(name), "%d", attribute);
			if (CALL(cuMemRangeGetAttribute, name, &is, 4, attribute, p, 4 * MIB) == 0)
				value("is", (u64)(int64_t)is);
		}
	}
	for (size_t i = 0; i < sizeof(accesses) / sizeof(*accesses); i++) {
		access_desc a = accesses[i];

		snprintf(name, sizeof(name), "%d %d %d", a.where.type, a.where.id, a.flags);
		CALL(cuMemPoolSetAccess, name, pool, &a, 1);
		if (CALL(cuMemPoolGetAccess, name, &flags, pool, &a.where) == 0)
			value("is", flags);
	}
	CALL(cuMemPoolSetAttribute, "reuse", pool, 1, &off);
	CALL(cuMemPoolSetAttribute, "threshold", pool, 4, &keep);
	for (int attribute = 5; attribute <= 9; attribute++) {
		snprintf(name, sizeof(name), "%d", attribute);
		CALL(cuMemPoolSetAttribute, name, pool, attribute, &zero);
		CALL(cuMemPoolSetAttribute, name, pool, attribute, &keep);
	}
	pool_values("set", pool, 4);
	DO(cuMemGetDefaultMemPool, &standard, &here, 2);
	CALL(cuMemSetMemPool, "", &here, 2, pool);
	CALL(cuMemSetMemPool, "another type", &here, 1, pool);
	CALL(cuMemSetMemPool, "another place", &host, 2, pool);
	if (CALL(cuMemGetMemPool, "set", &set, &here, 2) == 0)
		text(" %s", set == pool ? "it" : set == standard ? "the default" : "another");
	CALL(cuDeviceSetMemPool, "managed", 0, standard);
	if (CALL(cuMemGetMemPool, "set for the device", &set, &here, 2) == 0)
		text(" %s", set == pool ? "the first" : set == standard ? "it" : "another");
	if (CALL(cuDeviceGetMemPool, "", &set, 0) == 0)
		text(" %s", set == pool || set == standard ? "managed" : "not managed");
	if (CALL(cuMemAllocAsync, "of the device's", &q, 4096, stream) == 0) {
		attributes("of the device's", q);
		CALL(cuMemFreeAsync, "", q, stream);
	}
	CALL(cuMemPoolExportPointer, "managed", name, p);
	CALL(cuMemPoolTrimTo, "", pool, 0);
	CALL(cuMemFreeAsync, "middle", p + 512, stream);
	CALL(cuMemPoolDestroy, "with memory", pool);
	CALL(cuMemAllocFromPoolAsync, "destroyed", &q, 4096, pool, stream);
	CALL(cuMemFreeAsync, "", p, stream);
	CALL(cuMemFreeAsync, "again", p, stream);
	CALL(cuMemFree_v2, "again", p);
	if (CALL(cuMemAllocFromPoolAsync, "for cuMemFree", &p, 4096, standard, stream) == 0)
		CALL(cuMemFree_v2, "of the pool", p);
	CALL(cuStreamSynchronize, "", stream);
}

const struct test pool_tests[] = {{"managed-pools", made, 30}, {"managed-pool", used, 30}, {0}};
