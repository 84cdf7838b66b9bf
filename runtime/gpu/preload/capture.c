#define _GNU_SOURCE
#include "capture.h"
#include "able.h"
#include "gate.h"
#include "hooks.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// PER_THREAD is CU_STREAM_PER_THREAD, a stream of each thread's own. The functions of programs that are made for it take NULL for that.
#define PER_THREAD ((CUstream)2)
#define LAST_NAME ((uintptr_t)2) // of those streams that have fixed names instead of handles

// captures are those whose beginning the driver has said yes to. They are not asked for later: a stream that is gone must not be named.
// A capture ends with cuStreamEndCapture, its stream, its context, or its thread if the stream is that one's own, and in no other way.
static struct capture { CUstream stream; CUcontext context; pid_t thread; } captures[1024]; // thread is 0 but for PER_THREAD
static unsigned count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// starting counts calls that may begin a capture, waiting those that wait for contexts. Each looks at the other's after it has counted itself.
static unsigned starting, waiting;

static pid_t self(void) { return syscall(SYS_gettid); }

static void add(struct capture c)
{
	pthread_mutex_lock(&lock);
	if (count < sizeof(captures) / sizeof(*captures)) {
		captures[count] = c;
		__atomic_store_n(&count, count + 1, __ATOMIC_SEQ_CST);
	} else {
		__atomic_add_fetch(&starting, 1, __ATOMIC_SEQ_CST); // for good: it is not known when it ends
		unable("it captures more streams at once than the library can count");
	}
	pthread_mutex_unlock(&lock);
}

static void drop(unsigned i)
{
	captures[i] = captures[count - 1];
	__atomic_store_n(&count, count - 1, __ATOMIC_SEQ_CST);
}

static int take(CUstream stream, struct capture *c)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < count && !found; i++)
		if (captures[i].stream == stream && (!captures[i].thread || captures[i].thread == self())) {
			*c = captures[i];
			drop(i);
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

int capture_any(void)
{
	if (__atomic_load_n(&starting, __ATOMIC_SEQ_CST))
		return 1;
	if (!__atomic_load_n(&count, __ATOMIC_SEQ_CST))
		return 0;
	pthread_mutex_lock(&lock);
	for (unsigned i = count; i-- > 0;)
		if (captures[i].thread && gate_gone(captures[i].thread))
			drop(i);
	pthread_mutex_unlock(&lock);
	return __atomic_load_n(&count, __ATOMIC_SEQ_CST) != 0;
}

int capture_wait_begin(void)
{
	__atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
	if (!capture_any())
		return 1;
	capture_wait_end();
	return 0;
}

void capture_wait_end(void) { __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST); }

CUresult capture_permits(void)
{
	CUdeviceptr small;
	CUresult r = driver.cuMemAlloc_v2(&small, 1);

	return r == CUDA_SUCCESS ? driver.cuMemFree_v2(small) : r;
}

// begin lets those that wait for contexts get as far as the driver, which takes microseconds: then they do a capture no harm any more. What
// they wait for may take long, or need this thread, so that is not waited for.
static struct capture begin(CUstream stream)
{
	struct capture c = {.stream = stream, .thread = stream == PER_THREAD ? self() : 0};
	int64_t until = now_ns() + INT64_C(1000000000);
	struct timespec pause = {0, 20000};

	if ((uintptr_t)stream <= LAST_NAME || driver.cuStreamGetCtx(stream, &c.context) != CUDA_SUCCESS)
		driver.cuCtxGetCurrent(&c.context);
	__atomic_add_fetch(&starting, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&waiting, __ATOMIC_SEQ_CST) && now_ns() < until)
		nanosleep(&pause, NULL);
	return c;
}

static CUresult begun(CUresult r, struct capture c)
{
	if (r == CUDA_SUCCESS)
		add(c);
	__atomic_sub_fetch(&starting, 1, __ATOMIC_SEQ_CST);
	return r;
}

static CUstream own(CUstream stream) { return stream ? stream : PER_THREAD; }

CUresult hook_cuStreamBeginCapture(CUstream stream)
{
	struct capture c = begin(stream);

	return begun(driver.cuStreamBeginCapture(stream), c);
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream)
{
	struct capture c = begin(own(stream));

	return begun(driver.cuStreamBeginCapture_ptsz(stream), c);
}

CUresult hook_cuStreamBeginCapture_v2(CUstream stream, int mode)
{
	struct capture c = begin(stream);

	return begun(driver.cuStreamBeginCapture_v2(stream, mode), c);
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
	struct capture c = begin(own(stream));

	return begun(driver.cuStreamBeginCapture_v2_ptsz(stream, mode), c);
}

CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t n, int mode)
{
	struct capture c = begin(stream);

	return begun(driver.cuStreamBeginCaptureToGraph(stream, graph, nodes, edges, n, mode), c);
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *nodes, const void *edges, size_t n, int mode)
{
	struct capture c = begin(own(stream));

	return begun(driver.cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, edges, n, mode), c);
}

// ended asks the driver: an invalid capture ends with an error, and with some errors it goes on.
static CUresult ended(CUresult r, CUstream stream)
{
	struct capture c;
	int status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (driver.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE)
		take(stream, &c);
	return r;
}

CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return ended(driver.cuStreamEndCapture(stream, graph), stream);
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
	return ended(driver.cuStreamEndCapture_ptsz(stream, graph), own(stream));
}

// destroy forgets the stream before it is destroyed: another may have its handle at once.
static CUresult destroy(CUstream stream, CUresult (*real)(CUstream))
{
	struct capture c;
	CUresult r;
	int captured;

	__atomic_add_fetch(&starting, 1, __ATOMIC_SEQ_CST);
	captured = take(stream, &c);
	r = real(stream);
	if (captured && r != CUDA_SUCCESS)
		add(c);
	__atomic_sub_fetch(&starting, 1, __ATOMIC_SEQ_CST);
	return r;
}

CUresult hook_cuStreamDestroy(CUstream stream) { return destroy(stream, driver.cuStreamDestroy); }

CUresult hook_cuStreamDestroy_v2(CUstream stream) { return destroy(stream, driver.cuStreamDestroy_v2); }

void capture_context_ended(CUcontext context)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = count; i-- > 0;)
		if (captures[i].context == context)
			drop(i);
	pthread_mutex_unlock(&lock);
}

void capture_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	count = starting = waiting = 0;
}
