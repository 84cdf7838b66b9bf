// Streams, and their capture into graphs. Streams are only names otherwise: what is asynchronous with the real driver is done at once. Nothing is
// kept of what was captured.
#define _GNU_SOURCE
#include "control.h"
#include "driver.h"
#include "orders.h"
#include "virtual.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MOST_STREAMS 256
#define LEGACY ((CUstream)1)
#define OWN ((CUstream)2) // CU_STREAM_PER_THREAD

static struct fake_stream {
	int alive;
	CUcontext context;
	pid_t thread; // whose default stream it is; 0: made by cuStreamCreate
	int status;   // CUstreamCaptureStatus
	int mode;     // of its capture
	pid_t by;     // who began that
} streams[MOST_STREAMS];

static __thread int mode; // CUstreamCaptureMode of this thread

static pid_t self(void) { return syscall(SYS_gettid); }

void streams_forget(void) { memset(streams, 0, sizeof(streams)); }

void streams_end(CUcontext context)
{
	for (struct fake_stream *s = streams; s < streams + MOST_STREAMS; s++)
		if (s->context == context)
			*s = (struct fake_stream){0};
}

static struct fake_stream *make(pid_t thread)
{
	for (struct fake_stream *s = streams; s < streams + MOST_STREAMS; s++)
		if (!s->alive) {
			*s = (struct fake_stream){.alive = 1, .context = current, .thread = thread};
			return s;
		}
	return NULL;
}

// find gives what a handle names; NULL for the default stream that all threads share.
static CUresult find(CUstream stream, struct fake_stream **found)
{
	*found = NULL;
	if (!stream || stream == LEGACY)
		return CUDA_SUCCESS;
	if (stream == OWN) {
		for (struct fake_stream *s = streams; s < streams + MOST_STREAMS && !*found; s++)
			if (s->alive && s->thread == self() && s->context == current)
				*found = s;
		if (!*found)
			*found = make(self());
		return *found ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (stream < streams || stream >= streams + MOST_STREAMS || !stream->alive)
		return CUDA_ERROR_INVALID_HANDLE;
	*found = stream;
	return CUDA_SUCCESS;
}

// spoil invalidates a capture; false where there is none.
static int spoil(struct fake_stream *s)
{
	int captured = s->status != CU_STREAM_CAPTURE_STATUS_NONE;

	if (captured && s->thread && syscall(SYS_tgkill, getpid(), s->thread, 0) < 0) { // its thread has ended, and it with that
		*s = (struct fake_stream){0};
		return 0;
	}
	if (captured)
		s->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
	return captured;
}

CUresult streams_safe(void)
{
	int spoilt = 0;

	if (mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct fake_stream *s = streams; s < streams + MOST_STREAMS; s++)
		if (s->by == self() ? s->mode != CU_STREAM_CAPTURE_MODE_RELAXED : mode == CU_STREAM_CAPTURE_MODE_GLOBAL && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
			spoilt |= spoil(s);
	return spoilt ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult streams_whole(CUcontext context)
{
	int spoilt = 0;

	for (struct fake_stream *s = streams; s < streams + MOST_STREAMS; s++)
		if (s->context == context)
			spoilt |= spoil(s);
	return spoilt ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult streams_take(CUstream stream, int *captured)
{
	struct fake_stream *s;
	CUresult r = find(stream, &s);

	*captured = r == CUDA_SUCCESS && s && s->status != CU_STREAM_CAPTURE_STATUS_NONE;
	return *captured && s->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : r;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	CUresult r = orders_own("cuStreamCreate");

	(void)flags;
	if (r != CUDA_SUCCESS)
		return r;
	r = enter();
	if (r == CUDA_SUCCESS && !current)
		r = CUDA_ERROR_INVALID_CONTEXT;
	if (r == CUDA_SUCCESS && !(*stream = make(0)))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	return leave(r);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS && (!s || s->thread))
		r = CUDA_ERROR_INVALID_HANDLE;
	if (r == CUDA_SUCCESS)
		*s = (struct fake_stream){0};
	return leave(r);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS)
		*context = s ? s->context : current;
	return leave(r);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS && s && spoil(s))
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	leave(r);
	return r == CUDA_SUCCESS ? leave(enter_idle()) : r;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode how)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS && !s)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (r == CUDA_SUCCESS && s->status != CU_STREAM_CAPTURE_STATUS_NONE)
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (r == CUDA_SUCCESS) {
		s->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
		s->mode = how;
		s->by = self();
	}
	return leave(r);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS && (!s || s->status == CU_STREAM_CAPTURE_STATUS_NONE))
		r = CUDA_ERROR_ILLEGAL_STATE;
	if (r == CUDA_SUCCESS && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED && s->by != self())
		r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (r == CUDA_SUCCESS) {
		if (s->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
			r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
		*graph = r == CUDA_SUCCESS ? (CUgraph)s : NULL;
		s->status = CU_STREAM_CAPTURE_STATUS_NONE;
		s->by = 0;
	}
	return leave(r);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	struct fake_stream *s;
	CUresult r = enter();

	if (r == CUDA_SUCCESS)
		r = find(stream, &s);
	if (r == CUDA_SUCCESS)
		*status = s ? s->status : CU_STREAM_CAPTURE_STATUS_NONE;
	return leave(r);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other)
{
	CUstreamCaptureMode before = mode;

	mode = *other;
	*other = before;
	return CUDA_SUCCESS;
}

// The functions of programs whose default stream is each thread's own.
static CUstream own(CUstream stream) { return stream ? stream : OWN; }

CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(own(stream)); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode how) { return cuStreamBeginCapture_v2(own(stream), how); }
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return cuStreamEndCapture(own(stream), graph); }
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status) { return cuStreamIsCapturing(own(stream), status); }
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { return cuMemFreeAsync(pointer, own(stream)); }

// As with the real driver (580): it does not wait for the lock, and reads memory that is not mapped while device memory is in host memory.
CUresult cuStreamQuery(CUstream stream)
{
	(void)stream;
	if (__atomic_load_n(&control.state, __ATOMIC_ACQUIRE) == CU_PROCESS_STATE_CHECKPOINTED)
		*(volatile int *)NULL = 0;
	return control.initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}
