// The side of legacy IPC that opens handles of another process's library.
#define _GNU_SOURCE
#include "able.h"
#include "capture.h"
#include "gate.h"
#include "hooks.h"
#include "ipc.h"
#include "range.h"
#include "shared.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

// An owner has SLICES times SLICE ms to answer. They are counted, not measured: a process may stand still for longer.
#define SLICE 100
#define SLICES 100

#define LAZY_ENABLE_PEER_ACCESS 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the one flag there is, which must be given

// borrowed is memory that was opened so many times in a context. times is 0 from the last close until it is unmapped.
static struct borrowed { struct range range; struct ipc_handle handle; unsigned times; } *all;
static size_t count, most;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;    // over these
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; // one is opened at a time

// What is open meanwhile; under thread_hold, for forks.
static int listening = -1, connected = -1;

int borrow_find(CUdeviceptr pointer, struct range *r)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !found; i++)
		if (all[i].times && pointer - all[i].range.address < all[i].range.bytes) {
			*r = all[i].range;
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

int borrow_covers(CUdeviceptr pointer, size_t bytes)
{
	int found = 0;

	if (!__atomic_load_n(&count, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !found; i++)
		found = pointer - all[i].range.address < all[i].range.bytes || all[i].range.address - pointer < bytes;
	pthread_mutex_unlock(&lock);
	return found;
}

// unmap unmaps the first pieces of a range, and frees its addresses.
static void unmap(struct range *r, unsigned mapped)
{
	CUdeviceptr at = r->address;

	for (unsigned i = 0; i < mapped; i++) {
		virtual_take_away(at, r->pieces[i].bytes);
		at += r->pieces[i].bytes;
	}
	driver.cuMemAddressFree(r->address, r->bytes);
	room_free(r->pieces, r->count * sizeof(*r->pieces));
}

// take_out takes out one that was closed, or any one of a context.
static int take_out(CUcontext context, struct range *r)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !found; i++)
		if (context ? all[i].range.context == context : !all[i].times) {
			*r = all[i].range;
			all[i] = all[count - 1];
			__atomic_store_n(&count, count - 1, __ATOMIC_RELAXED);
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

// sweep unmaps what was closed when its context has no work any more; while a stream is captured that cannot be waited for, and it stays until later.
static void sweep(void)
{
	struct range r;

	if (!__atomic_load_n(&count, __ATOMIC_RELAXED) || !capture_wait_begin())
		return;
	while (take_out(NULL, &r)) {
		range_wait(r.context); // errors are those of work that has failed
		unmap(&r, r.count);
	}
	capture_wait_end();
}

void borrow_context_ended(CUcontext context)
{
	struct range r;

	while (take_out(context, &r))
		unmap(&r, r.count);
}

// add takes a range over; it is false where there is no memory.
static int add(const struct range *r, const struct ipc_handle *handle)
{
	int ok = 1;

	pthread_mutex_lock(&lock);
	if (count == most) {
		size_t more = most ? 2 * most : 64;
		struct borrowed *b = room(more * sizeof(*b));

		ok = b != NULL;
		if (ok && all) {
			memcpy(b, all, count * sizeof(*b));
			room_free(all, most * sizeof(*b));
		}
		if (ok) {
			all = b;
			most = more;
		}
	}
	if (ok) {
		all[count] = (struct borrowed){*r, *handle, 1};
		__atomic_store_n(&count, count + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&lock);
	return ok;
}

// again opens once more what is open in a context.
static int again(const struct ipc_handle *handle, CUcontext context, CUdeviceptr *pointer)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !found; i++)
		if (all[i].times && all[i].range.context == context && !memcmp(&all[i].handle, handle, sizeof(*handle))) {
			all[i].times++;
			*pointer = all[i].range.address;
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

// lives reports whether the owner's thread is there: no other one may get the signal, which ends a process that does not expect it.
static int lives(const struct ipc_handle *handle)
{
	char path[64], name[32];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/comm", handle->pid, handle->tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, name, sizeof(name));
		close(fd);
	}
	return n >= (ssize_t)strlen(THREAD_NAME) && !memcmp(name, THREAD_NAME, strlen(THREAD_NAME));
}

// shares reports whether the owner is in this process's namespace of a kind.
static int shares(const struct ipc_handle *handle, const char *kind)
{
	char path[64], own[64], other[64];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/self/ns/%s", kind);
	n = readlink(path, own, sizeof(own));
	snprintf(path, sizeof(path), "/proc/%u/ns/%s", handle->pid, kind);
	return n > 0 && readlink(path, other, sizeof(other)) == n && !memcmp(own, other, n);
}

static int wake(const struct ipc_handle *handle, uint64_t value)
{
	siginfo_t info = {0};

	info.si_signo = THREAD_WAKE;
	info.si_code = SI_QUEUE;
	info.si_pid = getpid();
	info.si_uid = getuid();
	info.si_value.sival_ptr = (void *)(uintptr_t)value;
	return syscall(SYS_rt_tgsigqueueinfo, handle->pid, handle->tid, THREAD_WAKE, &info) == 0;
}

// await waits until a socket can be read, as long as the owner lives.
static int await(int socket, const struct ipc_handle *handle)
{
	for (int i = 0; i < SLICES; i++) {
		if (ipc_ready(socket, SLICE))
			return 1;
		if (!lives(handle))
			return ipc_ready(socket, 0); // what it has sent last
	}
	return 0;
}

static void hang_up(void)
{
	thread_hold();
	if (listening >= 0)
		close(listening);
	if (connected >= 0)
		close(connected);
	listening = connected = -1;
	thread_let_go();
}

// meet has the owner connect.
static CUresult meet(const struct ipc_handle *handle)
{
	struct sockaddr_un name;
	uint64_t value;
	unsigned length;
	int ok;

	if (!lives(handle) || !shares(handle, "ipc") || !shares(handle, "net"))
		return CUDA_ERROR_INVALID_VALUE;
	if (!ipc_random(&value, sizeof(value)))
		return CUDA_ERROR_OPERATING_SYSTEM;
	length = ipc_name(&name, handle->process, value);
	thread_hold();
	listening = ipc_socket();
	ok = listening >= 0 && !bind(listening, (struct sockaddr *)&name, length) && !listen(listening, 1);
	thread_let_go();
	if (!ok || !wake(handle, value))
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (!await(listening, handle))
		return lives(handle) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
	thread_hold();
	connected = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	ok = connected >= 0 && ipc_peer(connected);
	thread_let_go();
	return ok && send(connected, handle, sizeof(*handle), MSG_NOSIGNAL) == sizeof(*handle) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

// map maps memory by its descriptor, which stays the caller's. Where the memory is on another device, the current device gets access to it.
static CUresult map(CUdevice current, CUdevice *device, CUdeviceptr at, size_t bytes, int fd)
{
	struct mapping m = {.address = at, .bytes = bytes};
	CUmemGenericAllocationHandle handle;
	CUresult r = driver.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (r != CUDA_SUCCESS)
		return r;
	virtual_lock();
	m.memory = shared_imported(handle, fd);
	if (!m.memory) {
		driver.cuMemRelease(handle);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		*device = m.memory->range.device;
		m.write = range_accessors(*device) | UINT64_C(1) << current;
		r = mapping_room() ? mapping_map(&m) : CUDA_ERROR_OUT_OF_MEMORY;
		if (r == CUDA_SUCCESS && (r = mapping_access(&m)) != CUDA_SUCCESS)
			driver.cuMemUnmap(at, bytes);
		m.memory->handles = 0; // it stays as long as it is mapped
		if (r == CUDA_SUCCESS)
			mapping_add(&m);
		else
			virtual_end(m.memory);
	}
	virtual_unlock();
	return r;
}

// receive maps the next pieces. thread_hold is held.
static CUresult receive(struct range *r, CUdevice current, unsigned *mapped, CUdeviceptr *at)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int) * IPC_BATCH)]; } control;
	uint64_t sizes[IPC_BATCH];
	int files[IPC_BATCH];
	struct iovec part = {sizes, sizeof(sizes)};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(connected, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	CUresult result = CUDA_SUCCESS;
	unsigned got = 0;

	for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&m) : NULL; c; c = CMSG_NXTHDR(&m, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(files, CMSG_DATA(c), got * sizeof(int));
		}
	// Fewer descriptors than sizes: there was no room for more in this process, or the allocation has ended.
	if (n <= 0 || n != (ssize_t)(got * sizeof(*sizes)) || m.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		result = CUDA_ERROR_OPERATING_SYSTEM;
	for (unsigned i = 0; i < got; i++) {
		if (result == CUDA_SUCCESS && (*mapped == r->count || sizes[i] > r->address + r->bytes - *at))
			result = CUDA_ERROR_INVALID_VALUE;
		if (result == CUDA_SUCCESS)
			result = map(current, &r->device, *at, sizes[i], files[i]);
		if (result == CUDA_SUCCESS) {
			r->pieces[*mapped] = (struct piece){.bytes = sizes[i], .fd = -1, .passed = -1};
			++*mapped;
			*at += sizes[i];
		}
		close(files[i]);
	}
	return result;
}

// fetch gets the memory of a handle into a context.
static CUresult fetch(const struct ipc_handle *handle, CUdevice current, struct range *r)
{
	struct ipc_answer a;
	CUresult result = meet(handle);
	unsigned mapped = 0;
	CUdeviceptr at;

	if (result != CUDA_SUCCESS)
		return result;
	if (!await(connected, handle) || recv(connected, &a, sizeof(a), MSG_DONTWAIT) != sizeof(a))
		return lives(handle) ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE;
	if (a.result != CUDA_SUCCESS)
		return a.result;
	if (!a.count || !a.bytes || a.bytes % GRANULARITY || a.count > a.bytes / GRANULARITY || handle->bytes > a.bytes)
		return CUDA_ERROR_INVALID_VALUE;
	r->bytes = a.bytes;
	r->asked = handle->bytes;
	r->count = a.count;
	r->pieces = room(r->count * sizeof(*r->pieces));
	if (!r->pieces)
		return CUDA_ERROR_OUT_OF_MEMORY;
	result = driver.cuMemAddressReserve(&r->address, r->bytes, 0, 0, 0);
	if (result != CUDA_SUCCESS) {
		room_free(r->pieces, r->count * sizeof(*r->pieces));
		return result;
	}
	at = r->address;
	while (result == CUDA_SUCCESS && mapped < r->count) {
		if (!await(connected, handle)) {
			result = CUDA_ERROR_OPERATING_SYSTEM;
			break;
		}
		thread_hold();
		result = receive(r, current, &mapped, &at);
		thread_let_go();
	}
	if (result == CUDA_SUCCESS && at != r->address + r->bytes)
		result = CUDA_ERROR_INVALID_VALUE;
	if (result != CUDA_SUCCESS)
		unmap(r, mapped);
	return result;
}

static CUresult borrow(CUdeviceptr *pointer, const struct ipc_handle *handle, unsigned flags)
{
	struct range r = {0};
	CUresult result = driver.cuCtxGetCurrent(&r.context);
	CUdevice current;

	if (result == CUDA_SUCCESS)
		result = r.context ? driver.cuCtxGetDevice(&current) : CUDA_ERROR_INVALID_CONTEXT;
	if (result != CUDA_SUCCESS)
		return result;
	if (!pointer || flags != LAZY_ENABLE_PEER_ACCESS)
		return CUDA_ERROR_INVALID_VALUE;
	if (lend_own(handle))
		return CUDA_ERROR_INVALID_CONTEXT; // as the driver
	sweep();
	pthread_mutex_lock(&opening);
	if (again(handle, r.context, pointer)) {
		pthread_mutex_unlock(&opening);
		return CUDA_SUCCESS;
	}
	result = fetch(handle, current, &r);
	hang_up();
	if (result == CUDA_SUCCESS && !add(&r, handle)) {
		unmap(&r, r.count);
		result = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_mutex_unlock(&opening);
	if (result == CUDA_SUCCESS)
		*pointer = r.address;
	return result;
}

// opened is for a handle of the driver's.
static CUresult opened(CUresult r)
{
	if (r == CUDA_SUCCESS)
		unable("it uses GPU memory of other processes that the driver keeps (cudaIpcOpenMemHandle)");
	return r;
}

static int is_own(const CUipcMemHandle *handle) { return !memcmp(handle, IPC_MARK, strlen(IPC_MARK)); }

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	return is_own(&handle) ? borrow(pointer, (struct ipc_handle *)&handle, flags) : opened(driver.cuIpcOpenMemHandle(pointer, handle, flags));
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	return is_own(&handle) ? borrow(pointer, (struct ipc_handle *)&handle, flags) : opened(driver.cuIpcOpenMemHandle_v2(pointer, handle, flags));
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr pointer)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < count && !found; i++)
		if (all[i].times && all[i].range.address == pointer) {
			all[i].times--;
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	if (!found)
		return borrow_covers(pointer, 1) ? CUDA_ERROR_INVALID_VALUE : driver.cuIpcCloseMemHandle(pointer);
	sweep();
	return CUDA_SUCCESS;
}

// A handle of the library's memory is the library's, and of the driver's the driver's.
CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr pointer)
{
	CUcontext context = NULL;
	struct ipc_handle own;
	CUresult r = lend_handle(pointer, &own);

	if (r == CUDA_ERROR_NOT_FOUND) {
		r = driver.cuIpcGetMemHandle(handle, pointer);
		if (r == CUDA_SUCCESS)
			unable("it gives GPU memory that the driver keeps to other processes (cudaIpcGetMemHandle)");
	} else if (r == CUDA_SUCCESS && (r = driver.cuCtxGetCurrent(&context)) == CUDA_SUCCESS)
		r = !context ? CUDA_ERROR_INVALID_CONTEXT : !handle ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS && context)
		memcpy(handle, &own, sizeof(own));
	return r;
}

void borrow_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_mutex_init(&opening, NULL);
	if (listening >= 0)
		close(listening);
	if (connected >= 0)
		close(connected);
	listening = connected = -1;
	count = 0;
}
