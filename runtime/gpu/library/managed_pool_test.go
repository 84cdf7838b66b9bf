package library

import "testing"

// TestManagedPools uses pools of managed memory as a program does: the answers are those of driver 580.159.04 on an H200.
func TestManagedPools(t *testing.T) {
	r, path := managedProgram(t, `
static CUmemoryPool pool(int type, int id)
{
	CUmemPoolProps p = {.allocType = 2, .location = {type, id}};
	CUmemoryPool made;
	MUST(cuMemPoolCreate(&made, &p));
	return made;
}
static uint64_t attribute(CUmemoryPool p, int a)
{
	uint64_t value = 0;
	MUST(cuMemPoolGetAttribute(p, a, &value));
	return value;
}
static uint64_t of(CUdeviceptr pointer, int a)
{
	uint64_t value = 0;
	MUST(cuPointerGetAttribute(&value, a, pointer));
	return value;
}
static CUresult reset(CUmemoryPool p, int a, uint64_t value) { return cuMemPoolSetAttribute(p, a, &value); }
static CUresult access_to(CUmemoryPool p, int type, int id, int flags) { return cuMemPoolSetAccess(p, &(CUmemAccessDesc){{type, id}, flags}, 1); }
static int accessed(CUmemoryPool p, int type, int id)
{
	int flags = 7;
	CUresult r = cuMemPoolGetAccess(&flags, p, &(CUmemLocation){type, id});
	return r ? -r : flags;
}
int main(void)
{
	enum { DEVICE = 1, HOST = 2, NUMA = 3, CURRENT = 4 };
	CUmemPoolProps limited = {.allocType = 2, .location = {DEVICE, 0}, .maxSize = 64 << 20};
	CUmemLocation device = {DEVICE, 0}, host = {HOST, 0}, none = {0, 0}, wrong = {DEVICE, 5}, numa = {NUMA, 0}, current = {CURRENT, 0};
	CUmemoryPool p, q, other, first;
	CUdeviceptr small, large, more, plain;
	CUstream stream;
	begin();
	MUST(cuStreamCreate(&stream, 0));
	IS(cuMemPoolCreate(&p, &limited), CUDA_ERROR_INVALID_VALUE);
	for (int type = 0; type <= NUMA; type++)
		MUST(cuMemPoolDestroy(pool(type, 0)));
	p = pool(DEVICE, 0);
	MUST(cuMemAllocFromPoolAsync(&small, 4096, p, stream));
	MUST(cuMemAllocFromPoolAsync(&large, 5 << 20, p, stream));
	((char *)small)[4095] = 1;
	((char *)large)[(5 << 20) - 1] = 1;
	more = 5;
	MUST(cuMemAllocFromPoolAsync(&more, 0, p, stream));
	IS(more, 0);
	IS(of(small, CU_POINTER_ATTRIBUTE_IS_MANAGED), 1);
	IS(of(large, CU_POINTER_ATTRIBUTE_CONTEXT), 0);
	IS(of(large, 17), (uintptr_t)p);
	IS(of(large, CU_POINTER_ATTRIBUTE_RANGE_SIZE), 5 << 20);
	IS(attribute(p, 1), 1);
	IS(attribute(p, 4), 0);
	IS(attribute(p, 5), 32 << 20);
	IS(attribute(p, 7), (5 << 20) + 4096);
	MUST(cuMemFreeAsync(large, stream));
	IS(cuMemFreeAsync(large, stream), CUDA_ERROR_INVALID_VALUE);
	IS(attribute(p, 7), 4096);
	IS(attribute(p, 8), (5 << 20) + 4096);
	MUST(reset(p, 8, 0));
	IS(attribute(p, 8), 4096);
	IS(reset(p, 8, 1), CUDA_ERROR_INVALID_VALUE);
	IS(reset(p, 7, 0), CUDA_ERROR_INVALID_VALUE);
	MUST(reset(p, 4, 1 << 20));
	IS(attribute(p, 4), 1 << 20);
	IS(cuMemPoolGetAttribute(p, 9, &more), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemAdvise(small, 4096, 1, 0), CUDA_ERROR_NOT_SUPPORTED);
	IS(cuStreamAttachMemAsync(stream, small, 0, 1), CUDA_ERROR_INVALID_VALUE);
	MUST(cuMemPrefetchAsync(small, 4096, 0, stream));
	IS(accessed(p, DEVICE, 0), 0);
	MUST(access_to(p, DEVICE, 0, 3));
	MUST(access_to(p, HOST, 0, 3));
	IS(access_to(p, DEVICE, 0, 1), CUDA_ERROR_NOT_SUPPORTED);
	IS(access_to(p, DEVICE, 5, 3), CUDA_ERROR_INVALID_DEVICE);
	IS(accessed(p, DEVICE, 0), 3);
	IS(accessed(p, HOST, 0), 3);
	IS(accessed(p, DEVICE, 5), -CUDA_ERROR_INVALID_VALUE);
	MUST(access_to(p, DEVICE, 0, 0));
	IS(accessed(p, DEVICE, 0), 0);
	MUST(cuMemGetDefaultMemPool(&first, &device, 2));
	MUST(cuMemGetDefaultMemPool(&q, &host, 2));
	IS(first == q, 0);
	MUST(cuMemGetDefaultMemPool(&q, &none, 2));
	MUST(cuMemGetDefaultMemPool(&q, &numa, 2));
	IS(cuMemGetDefaultMemPool(&q, &wrong, 2), CUDA_ERROR_INVALID_VALUE);
	IS(cuMemGetDefaultMemPool(&q, &current, 2), CUDA_ERROR_NOT_SUPPORTED);
	IS(cuMemPoolDestroy(first), CUDA_ERROR_INVALID_VALUE);
	MUST(cuMemGetMemPool(&q, &device, 2));
	IS(q == first, 1);
	MUST(cuMemSetMemPool(&device, 2, p));
	IS(cuMemSetMemPool(&device, 1, p), CUDA_ERROR_INVALID_VALUE);
	MUST(cuMemGetMemPool(&q, &device, 2));
	IS(q == p, 1);
	MUST(cuDeviceSetMemPool(0, first));
	MUST(cuMemGetMemPool(&q, &device, 2));
	IS(q == first, 1);
	other = pool(HOST, 0);
	MUST(cuMemAllocFromPoolAsync(&more, 4096, other, stream));
	IS(more - small < 4096, 0);
	MUST(cuMemPoolDestroy(other));
	IS(cuMemAllocFromPoolAsync(&plain, 4096, other, stream), CUDA_ERROR_INVALID_VALUE);
	((char *)more)[7] = 9;
	MUST(cuMemFreeAsync(more, stream)); // it outlasts its pool
	MUST(cuMemPoolDestroy(p));
	MUST(cuMemFree_v2(small));
	IS(cuMemFree_v2(small), CUDA_ERROR_INVALID_VALUE);
	MUST(cuMemAllocManaged(&plain, 4096, 1));
	IS(cuMemFreeAsync(plain, stream), CUDA_ERROR_NOT_SUPPORTED);
	MUST(cuStreamBeginCapture_v2(stream, 2));
	IS(cuMemAllocFromPoolAsync(&more, 4096, first, stream), CUDA_ERROR_NOT_SUPPORTED);
	for (int i = 0; i < 1000; i++) { // nothing stays of a pool
		p = pool(DEVICE, 0);
		MUST(cuMemAllocFromPoolAsync(&small, 4096, p, NULL));
		MUST(cuMemPoolDestroy(p));
		IS(cuMemFreeAsync(small, NULL), i ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); // a capture cannot wait
		if (!i) {
			CUgraph graph;
			MUST(cuStreamEndCapture(stream, &graph));
		}
	}
	printf("good\n");
}`, 256)
	if out := r.runs(path); out != "good\n" {
		t.Error(out)
	}
}
