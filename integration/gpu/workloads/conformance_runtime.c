// The runtime's memory API, by libcudart where there is one.
#include "conformance.h"

struct attributes { int type, device; void *on_device, *on_host; long reserved[16]; };
struct extent { size_t width, height, depth; };
struct pitched { void *at; size_t pitch, width, height; };

static void asked(const char *what, void *p)
{
	struct attributes a = {0};

	if (CALL(cudaPointerGetAttributes, what, &a, p) == 0) {
		text(" type=%d device=%d", a.type, a.device);
		address("device", (ptr)a.on_device);
		address("host", (ptr)a.on_host);
	}
}

static void runtime(void)
{
	size_t sizes[] = {0, 1, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, piece + 3 * MIB}, free = 0, total = 0, pitch = 0;
	char *host = malloc(4 * MIB), *back = malloc(4 * MIB);
	void *p = NULL, *h = NULL, *stream = NULL, *pool = NULL;
	struct pitched three = {0};
	struct extent e = {1000, 100, 10};
	int (*malloc3)(struct pitched *, struct extent) = (int (*)(struct pitched *, struct extent))function("cudaMalloc3D");

	if (CALL(cudaSetDevice, "", 0) == ABSENT)
		return;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		char what[32];

		snprintf(what, sizeof(what), "%zu", sizes[i]);
		p = (void *)0x123;
		if (CALL(cudaMalloc, what, &p, sizes[i]) || !p)
			continue;
		known("a", (ptr)p, sizes[i]);
		asked("first", p);
		asked("last", (char *)p + sizes[i] - 1);
		CALL(cudaMemset, what, p, 0x33, sizes[i]);
		CALL(cudaMemcpy, what, back, (char *)p + sizes[i] - 1, 1, 2);
		CALL(cudaMemcpy, "by where it is", back, p, 1, 4);
		CALL(cudaFree, "middle", (char *)p + 1);
		CALL(cudaFree, what, p);
		asked("freed", p);
		CALL(cudaFree, "again", p);
		CALL(cudaGetLastError, "", 0);
	}
	CALL(cudaMalloc, "2^47", &p, (size_t)1 << 47);
	CALL(cudaGetLastError, "", 0);
	CALL(cudaFree, "NULL", 0);
	asked("not pinned", host);
	asked("NULL", NULL);
	CALL(cudaGetLastError, "", 0);
	if (CALL(cudaMemGetInfo, "", &free, &total) == 0)
		text(" total=%zuMiB", total / MIB);
	if (CALL(cudaMallocPitch, "", &p, &pitch, 3000, 3000) == 0) {
		value("pitch", pitch);
		known("a", (ptr)p, pitch * 3000);
		CALL(cudaMemset2D, "", p, pitch, 1, 3000, 3000);
		CALL(cudaMemcpy2D, "", back, 3000, p, pitch, 3000, 1000, 2);
		asked("of two dimensions", (char *)p + pitch * 2999);
		CALL(cudaFree, "", p);
	}
	begun("cudaMalloc3D", "");
	if (returned(malloc3 ? malloc3(&three, e) : ABSENT) == 0) {
		text(" pitch=%zu %zux%zu", three.pitch, three.width, three.height);
		CALL(cudaFree, "", three.at);
	}
	for (unsigned f = 0; f < 8; f++)
		if (CALL(cudaHostAlloc, "", &h, MIB, f) == 0) {
			known("h", (ptr)h, MIB);
			asked("pinned", h);
			CALL(cudaFreeHost, "", h);
		}
	if (CALL(cudaMallocHost, "", &h, MIB) == 0)
		CALL(cudaFreeHost, "", h);
	if (CALL(cudaHostRegister, "", host, MIB, 0) == 0) {
		known("r", (ptr)host, MIB);
		asked("registered", host);
		CALL(cudaHostUnregister, "", host);
	}
	CALL(cudaStreamCreate, "", &stream);
	if (CALL(cudaMallocAsync, "", &p, 5 * MIB, stream) == 0) {
		known("p", (ptr)p, 5 * MIB);
		asked("of the pool", p);
		CALL(cudaFreeAsync, "", p, stream);
	}
	if (CALL(cudaMalloc, "", &p, 5 * MIB) == 0) {
		CALL(cudaFreeAsync, "of cudaMalloc", p, stream);
		CALL(cudaStreamSynchronize, "", stream);
	}
	if (CALL(cudaDeviceGetDefaultMemPool, "", &pool, 0) == 0) {
		CALL(cudaMallocFromPoolAsync, "", &p, 3 * MIB, pool, stream);
		CALL(cudaFreeAsync, "", p, stream);
		CALL(cudaMemPoolTrimTo, "", pool, 0);
	}
	CALL(cudaStreamSynchronize, "", stream);
	CALL(cudaDeviceReset, "", 0);
	CALL(cudaMalloc, "after a reset", &p, 4 * MIB);
}

static void runtime_ipc(void)
{
	handle64 h, again;
	char back[1000];
	void *p = NULL;

	if (CALL(cudaMalloc, "", &p, 4 * MIB))
		return;
	if (CALL(cudaIpcGetMemHandle, "", &h, p) == 0) {
		CALL(cudaIpcGetMemHandle, "again", &again, p);
		text(" %s", !memcmp(&h, &again, sizeof(h)) ? "the same" : "another");
	}
	struct opened { handle64 handle; u64 bytes, offset; } o = {.handle = h, .bytes = 4 * MIB};
	struct other second = other("runtime", &o, sizeof(o));

	finish(&second);
	CALL(cudaMemcpy, "what the second process has written", back, p, sizeof(back), 2);
	text(" %s", same(back, sizeof(back), 15) ? "right" : "wrong");
	CALL(cudaIpcCloseMemHandle, "own", p);
	CALL(cudaGetLastError, "", 0);
	CALL(cudaFree, "", p);
}

void runtime_second(const handle64 *handle)
{
	int (*f)(void **, handle64, unsigned) = (int (*)(void **, handle64, unsigned))function("cudaIpcOpenMemHandle");
	char bytes[1000];
	void *p = NULL;

	pattern(bytes, sizeof(bytes), 15);
	begun("cudaIpcOpenMemHandle", "");
	if (returned(f ? f(&p, *handle, 1) : ABSENT))
		return;
	known("o", (ptr)p, 4 * MIB);
	asked("opened", (char *)p + 5);
	CALL(cudaMemcpy, "to opened memory", p, bytes, sizeof(bytes), 1);
	CALL(cudaDeviceSynchronize, "", 0);
	CALL(cudaIpcCloseMemHandle, "", p);
	CALL(cudaIpcCloseMemHandle, "again", p);
}

const struct test runtime_tests[] = {{"runtime", runtime, 60}, {"runtime-ipc", runtime_ipc, 30}, {0}};
