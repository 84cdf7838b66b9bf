// Graphs with allocations of their own, and what may be done while a stream is captured.
#include "conformance.h"

static void graph_values(const char *what)
{
	for (int attribute = 0; attribute < 4; attribute++) {
		char name[32];
		u64 v = 77;

		snprintf(name, sizeof(name), "%s, %d", what, attribute);
		if (CALL(cuDeviceGetGraphMemAttribute, name, 0, attribute, &v) == 0)
			value("is", v);
	}
}

static void graphs(void)
{
	alloc_node node = {.pool = {.type = 1, .where = {1, 0}}, .bytes = 3 * MIB}, got = {0};
	void *graph = NULL, *allocated = NULL, *set = NULL, *copied = NULL, *freed = NULL, *exec = NULL, *stream = NULL, *c = context();
	ptr own = 0, at = 0;
	u64 zero = 0;

	DO(cuStreamCreate, &stream, 1);
	DO(cuMemAlloc_v2, &own, 4 * MIB);
	known("own", own, 4 * MIB);
	graph_values("new");
	DO(cuGraphCreate, &graph, 0);
	if (CALL(cuGraphAddMemAllocNode, "", &allocated, graph, NULL, 0, &node))
		return;
	memset_node m = {.to = node.pointer, .value = 0x5c, .element = 1, .width = 3 * MIB, .height = 1};
	copy3 c3 = {.from = {.type = DEVICE, .device = node.pointer, .pitch = 3 * MIB, .height = 1}, .to = {.type = DEVICE, .device = own, .pitch = 3 * MIB, .height = 1},
		.width = 3 * MIB, .height = 1, .depth = 1}, c4;

	known("node", node.pointer, 3 * MIB);
	CALL(cuGraphMemAllocNodeGetParams, "", allocated, &got);
	CALL(cuGraphAddMemsetNode, "", &set, graph, &allocated, 1, &m, c);
	CALL(cuGraphMemsetNodeGetParams, "", set, &m);
	CALL(cuGraphAddMemcpyNode, "", &copied, graph, &set, 1, &c3, c);
	CALL(cuGraphMemcpyNodeGetParams, "", copied, &c4);
	CALL(cuGraphAddMemFreeNode, "of cuMemAlloc", &freed, graph, &copied, 1, own);
	CALL(cuGraphAddMemFreeNode, "", &freed, graph, &copied, 1, node.pointer);
	if (CALL(cuGraphMemFreeNodeGetParams, "", freed, &at) == 0)
		address("at", at);
	attributes("in a graph", node.pointer);
	if (CALL(cuGraphInstantiateWithFlags, "", &exec, graph, 0) == 0) {
		for (int i = 0; i < 2; i++)
			CALL(cuGraphLaunch, "", exec, stream);
		if (CALL(cuStreamSynchronize, "", stream) == 0) {
			unsigned char *host = calloc(3, MIB);

			DO(cuMemcpyDtoH_v2, host, own, 3 * MIB);
			text(" %s", host[0] == 0x5c && host[3 * MIB - 1] == 0x5c ? "right" : "wrong");
		}
		graph_values("launched");
		DO(cuGraphExecDestroy, exec);
	}
	CALL(cuDeviceGraphMemTrim, "", 0);
	graph_values("trimmed");
	CALL(cuDeviceSetGraphMemAttribute, "high", 0, 1, &zero);
	CALL(cuDeviceSetGraphMemAttribute, "current", 0, 0, &zero);
	CALL(cuGraphAddMemAllocNode, "0", &allocated, graph, NULL, 0, (&(alloc_node){.pool = {.type = 1, .where = {1, 0}}}));
}

// captured asks what may be done while a stream is captured, by each way of capturing.
static void captured(void)
{
	static const char *const modes[] = {"global", "one thread's", "relaxed"};

	context();
	for (int mode = 0; mode < 3; mode++)
		for (size_t bytes = 100; bytes <= 4 * MIB; bytes = bytes == 100 ? 4 * MIB : bytes * 2) {
			void *stream = NULL, *graph = NULL;
			char what[64];
			ptr p = 0, q = 0, r = 0, found = 0;

			DO(cuStreamCreate, &stream, 1);
			DO(cuMemAlloc_v2, &p, bytes);
			snprintf(what, sizeof(what), "%s, %zu", modes[mode], bytes);
			CALL(cuStreamBeginCapture_v2, what, stream, mode);
			CALL(cuMemAlloc_v2, what, &q, bytes);
			if (CALL(cuMemAllocAsync, what, &r, bytes, stream) == 0)
				CALL(cuMemFreeAsync, what, r, stream);
			CALL(cuMemGetAddressRange_v2, what, &found, NULL, p);
			CALL(cuMemsetD8Async, what, p, 1, bytes, stream);
			CALL(cuMemFree_v2, what, p);
			CALL(cuMemGetAddressRange_v2, "freed", &found, NULL, p);
			CALL(cuStreamEndCapture, what, stream, &graph);
			if (graph)
				DO(cuGraphDestroy, graph);
			DO(cuStreamDestroy_v2, stream);
			CALL(cuCtxSynchronize, "", 0);
		}
}

const struct test graph_tests[] = {{"graphs", graphs, 30}, {"captured", captured, 60}, {0}};
