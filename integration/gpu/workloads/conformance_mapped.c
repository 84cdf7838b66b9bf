// Pools, arrays, textures, and what hands memory to other devices and libraries.
#define _GNU_SOURCE
#include "conformance.h"

void pool_values(const char *what, void *pool, int last)
{
	for (int attribute = 1; attribute <= last; attribute++) {
		char name[64];
		u64 v = 0;

		snprintf(name, sizeof(name), "%s, %d", what, attribute);
		if (CALL(cuMemPoolGetAttribute, name, pool, attribute, &v) == 0)
			value("is", v);
	}
}

static void pools(void)
{
	void *stream = NULL, *standard = NULL, *pool = NULL, *set = NULL;
	pool_props props = {.type = 1, .handles = 0, .where = {1, 0}};
	access_desc access = {{1, 0}, 3};
	location here = {1, 0};
	ptr p = 0, q = 0;
	u64 keep = 64 * MIB;
	int flags = 77, on = 1;

	context();
	DO(cuStreamCreate, &stream, 1);
	CALL(cuDeviceGetDefaultMemPool, "", &standard, 0);
	CALL(cuDeviceGetDefaultMemPool, "no device", &standard, 99);
	if (CALL(cuDeviceGetMemPool, "", &set, 0) == 0)
		text(" %s", set == standard ? "the default" : "another");
	if (CALL(cuMemGetDefaultMemPool, "", &set, &here, 1) == 0)
		text(" %s", set == standard ? "the default" : "another");
	if (CALL(cuMemGetMemPool, "", &set, &here, 1) == 0)
		text(" %s", set == standard ? "the default" : "another");
	CALL(cuMemSetMemPool, "", &here, 1, standard);
	pool_values("new", standard, 8);
	if (CALL(cuMemAllocAsync, "", &p, 5 * MIB, stream) == 0) {
		known("p", p, 5 * MIB);
		CALL(cuStreamSynchronize, "", stream);
		fill(p, 5 * MIB, 8);
		holds(p, 5 * MIB, 8);
		attributes("of the pool", p + 5);
		if (CALL(cuMemGetAddressRange_v2, "of the pool", &q, &keep, p + 5) == 0) {
			address("base", q);
			value("bytes", keep);
		}
		pool_values("with memory", standard, 8);
		CALL(cuMemFreeAsync, "middle", p + 512, stream);
		CALL(cuMemFreeAsync, "", p, stream);
		CALL(cuMemFreeAsync, "again", p, stream);
	}
	CALL(cuMemAllocAsync, "0", &p, 0, stream);
	CALL(cuMemAllocAsync, "NULL", NULL, 100, stream);
	CALL(cuMemAllocAsync, "2^46", &p, (size_t)1 << 46, stream);
	if (CALL(cuMemAllocAsync, "for cuMemFree", &p, 5 * MIB, stream) == 0)
		CALL(cuMemFree_v2, "of the pool", p);
	for (size_t bytes = 1; bytes <= 4 * MIB; bytes = bytes == 1 ? 4 * MIB : bytes * 2) {
		DO(cuMemAlloc_v2, &p, bytes);
		CALL(cuMemFreeAsync, bytes == 1 ? "of cuMemAlloc, small" : "of cuMemAlloc", p, stream);
		CALL(cuMemGetAddressRange_v2, "freed on a stream", &q, NULL, p);
	}
	CALL(cuMemFreeAsync, "NULL", 0, stream);
	CALL(cuStreamSynchronize, "", stream);
	CALL(cuMemPoolTrimTo, "0", standard, 0);
	pool_values("trimmed", standard, 8);
	CALL(cuMemPoolCreate, "NULL", &pool, NULL);
	if (CALL(cuMemPoolCreate, "", &pool, &props))
		return;
	keep = 64 * MIB;
	CALL(cuMemPoolSetAttribute, "threshold", pool, 4, &keep);
	CALL(cuMemPoolSetAttribute, "reuse", pool, 1, &on);
	CALL(cuMemPoolSetAttribute, "none", pool, 99, &keep);
	if (CALL(cuMemPoolGetAccess, "", &flags, pool, &here) == 0)
		value("flags", flags);
	CALL(cuMemPoolSetAccess, "itself", pool, &access, 1);
	access.flags = 0;
	CALL(cuMemPoolSetAccess, "none", pool, &access, 1);
	CALL(cuDeviceSetMemPool, "", 0, pool);
	if (CALL(cuDeviceGetMemPool, "set", &set, 0) == 0)
		text(" %s", set == pool ? "the one set" : "another");
	if (CALL(cuMemAllocFromPoolAsync, "", &p, 3 * MIB, pool, stream) == 0) {
		known("p", p, 3 * MIB);
		attributes("of an own pool", p);
		CALL(cuMemFreeAsync, "of an own pool", p, stream);
	}
	CALL(cuMemPoolExportToShareableHandle, "not made for it", &flags, pool, 1, 0);
	CALL(cuDeviceSetMemPool, "back", 0, standard);
	pool_values("own", pool, 8);
	CALL(cuMemPoolTrimTo, "own", pool, 0);
	CALL(cuMemPoolDestroy, "", pool);
	CALL(cuMemPoolDestroy, "the default", standard);
}

static void pools_shared(void)
{
	pool_props props = {.type = 1, .handles = 1, .where = {1, 0}};
	void *stream = NULL, *pool = NULL, *imported = NULL;
	handle64 data;
	ptr p = 0, q = 0;
	int fd = -1;

	context();
	DO(cuStreamCreate, &stream, 1);
	if (CALL(cuMemPoolCreate, "for others", &pool, &props))
		return;
	CALL(cuMemPoolExportToShareableHandle, "", &fd, pool, 1, 0);
	CALL(cuMemAllocFromPoolAsync, "", &p, 3 * MIB, pool, stream);
	CALL(cuMemPoolExportPointer, "", &data, p);
	if (CALL(cuMemPoolImportFromShareableHandle, "", &imported, (int64_t)fd, 1, 0) == 0) {
		if (CALL(cuMemPoolImportPointer, "", &q, imported, &data) == 0)
			CALL(cuMemFree_v2, "imported", q);
		CALL(cuMemPoolDestroy, "imported", imported);
	}
	DO(cuMemAlloc_v2, &q, 2 * MIB);
	CALL(cuMemPoolExportPointer, "of cuMemAlloc", &data, q);
	CALL(cuMemFreeAsync, "", p, stream);
	CALL(cuStreamSynchronize, "", stream);
	CALL(cuMemPoolDestroy, "", pool);
	CALL(cuMemPoolImportFromShareableHandle, "none", &imported, (int64_t)-1, 1, 0);
	CALL(cuMemPoolImportPointer, "NULL", &q, NULL, &data);
}

static void arrays(void)
{
	array_desc d = {512, 64, FLOAT, 1}, got = {0};
	array3_desc d3 = {64, 32, 16, FLOAT, 1, 0}, got3 = {0};
	unsigned requirements[16] = {0}, sparse[16] = {0};
	void *array = NULL, *other = NULL, *three = NULL, *mip = NULL, *level = NULL, *stream = NULL;
	size_t bytes = 512 * 64 * 4;
	char *host = malloc(bytes), *back = malloc(bytes);
	ptr p, q;

	context();
	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	DO(cuMemAlloc_v2, &q, piece + 4 * MIB);
	pattern(host, bytes, 9);
	CALL(cuArrayCreate_v2, "NULL", NULL, &d);
	if (CALL(cuArrayCreate_v2, "", &array, &d))
		return;
	DO(cuArrayCreate_v2, &other, &d);
	if (CALL(cuArrayGetDescriptor_v2, "", &got, array) == 0)
		text(" %zux%zu %d %u", got.width, got.height, got.format, got.channels);
	CALL(cuArrayGetMemoryRequirements, "", requirements, array, 0);
	CALL(cuArrayGetSparseProperties, "", sparse, array);
	CALL(cuArrayGetPlane, "", &level, array, 0);
	copy2 c = {.from = {.type = DEVICE, .device = q + piece - 4096, .pitch = 2048}, .to = {.type = ARRAY, .array = array}, .width = 2048, .height = 64};
	copy2 out = {.from = {.type = ARRAY, .array = array}, .to = {.type = DEVICE, .device = p, .pitch = 2048}, .width = 2048, .height = 64};

	DO(cuMemcpyHtoD_v2, q + piece - 4096, host, bytes);
#define THROUGH(text_) do { memset(back, 0, bytes); CALL(cuMemcpy2D_v2, text_, &out); DO(cuMemcpyDtoH_v2, back, p, bytes); text(" %s", !memcmp(host, back, bytes) ? "right" : "wrong"); } while (0)
	CALL(cuMemcpy2D_v2, "", &c);
	THROUGH("back");
	CALL(cuMemcpy2DUnaligned_v2, "", &c);
	CALL(cuMemcpy2DAsync_v2, "", &c, stream);
	CALL(cuStreamSynchronize, "", stream);
	THROUGH("after Async");
	DO(cuMemsetD8_v2, p, 0, bytes);
	CALL(cuMemcpyHtoA_v2, "", array, 0, host, 2048);
	CALL(cuMemcpyAtoA_v2, "", other, 0, array, 0, 2048);
	CALL(cuMemcpyAtoD_v2, "", p, other, 0, 2048);
	CALL(cuMemcpyDtoA_v2, "", other, 0, p, 2048);
	memset(back, 0, bytes);
	CALL(cuMemcpyAtoH_v2, "", back, other, 0, 2048);
	text(" %s", !memcmp(host, back, 2048) ? "right" : "wrong");
	CALL(cuMemcpyHtoAAsync_v2, "", array, 0, host, 2048, stream);
	CALL(cuMemcpyAtoHAsync_v2, "", back, array, 0, 2048, stream);
	CALL(cuStreamSynchronize, "", stream);
	c.width = 1 << 20;
	CALL(cuMemcpy2D_v2, "too wide", &c);
	if (CALL(cuArray3DCreate_v2, "", &three, &d3) == 0) {
		copy3 in = {.from = {.type = DEVICE, .device = q + piece - 4096, .pitch = 256, .height = 32}, .to = {.type = ARRAY, .array = three}, .width = 256, .height = 32, .depth = 16};
		copy3 out3 = {.from = {.type = ARRAY, .array = three}, .to = {.type = DEVICE, .device = p, .pitch = 256, .height = 32}, .width = 256, .height = 32, .depth = 16};

		CALL(cuArray3DGetDescriptor_v2, "", &got3, three);
		text(" %zux%zux%zu", got3.width, got3.height, got3.depth);
		CALL(cuMemcpy3D_v2, "", &in);
		CALL(cuMemcpy3DAsync_v2, "", &out3, stream);
		DO(cuStreamSynchronize, stream);
		memset(back, 0, bytes);
		DO(cuMemcpyDtoH_v2, back, p, bytes);
		text(" %s", !memcmp(host, back, bytes) ? "right" : "wrong");
		in.from.context = in.to.context = out3.from.context = out3.to.context = context();
		CALL(cuMemcpy3DPeer, "", &in);
		CALL(cuMemcpy3DPeerAsync, "", &out3, stream);
		CALL(cuStreamSynchronize, "", stream);
		CALL(cuArrayDestroy, "three", three);
	}
	array3_desc flat = {64, 64, 0, FLOAT, 1, 0};

	if (CALL(cuMipmappedArrayCreate, "", &mip, &flat, 3) == 0) {
		CALL(cuMipmappedArrayGetLevel, "", &level, mip, 1);
		CALL(cuMipmappedArrayGetLevel, "none", &level, mip, 9);
		CALL(cuMipmappedArrayGetMemoryRequirements, "", requirements, mip, 0);
		CALL(cuMipmappedArrayGetSparseProperties, "", sparse, mip);
		CALL(cuMipmappedArrayDestroy, "", mip);
	}
	CALL(cuArrayDestroy, "", array);
	CALL(cuArrayDestroy, "NULL", NULL);
}

static void textures(void)
{
	texture_desc how = {.mode = {1, 1, 1}}, how2;
	resource_desc linear = {.type = 2}, pitched = {.type = 3}, got, of_array = {.type = 0};
	array3_desc d = {64, 64, 0, FLOAT, 1, 2}; // for surfaces
	void *array = NULL, *reference = NULL;
	size_t offset = 77, pitch = 0;
	u64 object = 0, surface = 0;
	ptr p, q, got_at = 0;

	context();
	DO(cuMemAlloc_v2, &p, piece + 4 * MIB);
	DO(cuMemAllocPitch_v2, &q, &pitch, 4000, 1000, 4);
	known("a", p, piece + 4 * MIB);
	linear.of.linear.device = p;
	linear.of.linear.format = FLOAT;
	linear.of.linear.channels = 1;
	linear.of.linear.bytes = 1 << 20;
	if (CALL(cuTexObjectCreate, "linear", &object, &linear, &how, NULL) == 0) {
		memset(&got, 0, sizeof(got));
		if (CALL(cuTexObjectGetResourceDesc, "", &got, object) == 0)
			address("device", got.of.linear.device);
		CALL(cuTexObjectGetTextureDesc, "", &how2, object);
		CALL(cuTexObjectGetResourceViewDesc, "", &got, object);
		CALL(cuTexObjectDestroy, "", object);
	}
	linear.of.linear.bytes = (piece + 3 * MIB) / 4096 * 4096;
	linear.of.linear.device = p + MIB;
	if (CALL(cuTexObjectCreate, "linear, over pieces", &object, &linear, &how, NULL) == 0)
		DO(cuTexObjectDestroy, object);
	linear.of.linear.bytes = piece + 5 * MIB;
	CALL(cuTexObjectCreate, "linear, past the end", &object, &linear, &how, NULL);
	linear.of.linear.device = p + 3;
	linear.of.linear.bytes = 4096;
	CALL(cuTexObjectCreate, "linear, not aligned", &object, &linear, &how, NULL);
	pitched.of.pitch.device = q;
	pitched.of.pitch.format = FLOAT;
	pitched.of.pitch.channels = 1;
	pitched.of.pitch.width = 1000;
	pitched.of.pitch.height = 1000;
	pitched.of.pitch.pitch = pitch;
	if (CALL(cuTexObjectCreate, "of two dimensions", &object, &pitched, &how, NULL) == 0)
		DO(cuTexObjectDestroy, object);
	CALL(cuSurfObjectCreate, "linear", &surface, &linear);
	if (DO(cuArray3DCreate_v2, &array, &d) == 0) {
		of_array.of.array = array;
		if (CALL(cuSurfObjectCreate, "", &surface, &of_array) == 0) {
			CALL(cuSurfObjectGetResourceDesc, "", &got, surface);
			CALL(cuSurfObjectDestroy, "", surface);
		}
	}
	if (DO(cuTexRefCreate, &reference) == 0) {
		DO(cuTexRefSetFormat, reference, FLOAT, 1);
		if (CALL(cuTexRefSetAddress_v2, "", &offset, reference, p, 1 << 20) == 0)
			value("offset", offset);
		if (CALL(cuTexRefGetAddress_v2, "", &got_at, reference) == 0)
			address("device", got_at);
		CALL(cuTexRefSetAddress_v2, "past the end", &offset, reference, p, piece + 6 * MIB);
		CALL(cuTexRefSetAddress2D_v3, "", reference, (&(array_desc){1000, 1000, FLOAT, 1}), q, pitch);
	}
}

const struct test mapped_tests[] = {
	{"pools", pools, 30}, {"pools-shared", pools_shared, 30}, {"arrays", arrays, 30}, {"textures", textures, 30}, {0},
};
