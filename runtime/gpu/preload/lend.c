// The owner's side of legacy IPC, and what both sides have in common.
#define _GNU_SOURCE
#include "ipc.h"
#include "shared.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "a handle has 64 bytes");

// PATIENCE is how long the other side may take to ask, or to take what is sent, ms.
#define PATIENCE 10000

static uint8_t process[16]; // all zeros until the first handle; under the table's lock, as the numbers
static uint64_t last;
static int serving = -1; // under thread_hold

int ipc_random(void *bytes, size_t count) { return syscall(SYS_getrandom, bytes, count, 0) == (long)count; }

int ipc_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

unsigned ipc_name(struct sockaddr_un *name, const uint8_t of[16], uint64_t value)
{
	int n = 0;

	memset(name, 0, sizeof(*name));
	name->sun_family = AF_UNIX;
	n += sprintf(name->sun_path + 1, "cryo-gpu-");
	for (int i = 0; i < 16; i++)
		n += sprintf(name->sun_path + 1 + n, "%02x", of[i]);
	n += sprintf(name->sun_path + 1 + n, "-%016llx", (unsigned long long)value);
	return offsetof(struct sockaddr_un, sun_path) + 1 + n;
}

int ipc_ready(int socket, int ms)
{
	struct pollfd p = {.fd = socket, .events = POLLIN};
	int n;

	while ((n = poll(&p, 1, ms)) < 0 && errno == EINTR)
		;
	return n > 0;
}

int ipc_peer(int socket)
{
	struct ucred c;
	socklen_t n = sizeof(c);

	return !getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &c, &n) && c.uid == geteuid();
}

CUresult lend_handle(CUdeviceptr pointer, struct ipc_handle *handle)
{
	static const uint8_t none[16];
	CUresult r = CUDA_ERROR_NOT_FOUND;
	struct range *range;

	table_lock();
	range = table_in(pointer);
	if (range) {
		r = CUDA_SUCCESS;
		if (!memcmp(process, none, sizeof(process)) && !ipc_random(process, sizeof(process)))
			r = CUDA_ERROR_OPERATING_SYSTEM;
		if (r == CUDA_SUCCESS && !range->number) {
			if (ipc_random(range->secret, sizeof(range->secret)))
				range->number = ++last;
			else
				r = CUDA_ERROR_OPERATING_SYSTEM;
		}
	}
	if (r == CUDA_SUCCESS) {
		*handle = (struct ipc_handle){.pid = getpid(), .tid = thread_id(), .number = range->number, .bytes = range->asked};
		memcpy(handle->mark, IPC_MARK, sizeof(handle->mark));
		memcpy(handle->process, process, sizeof(process));
		memcpy(handle->secret, range->secret, sizeof(handle->secret));
	}
	table_unlock();
	return r;
}

int lend_own(const struct ipc_handle *handle)
{
	int own;

	table_lock();
	own = !memcmp(handle->process, process, sizeof(process));
	table_unlock();
	return own;
}

// named finds the allocation of a handle. The table is locked.
static struct range *named(const struct ipc_handle *handle)
{
	struct range *r;

	for (size_t i = 0; (r = table_at(i)); i++)
		if (r->number && r->number == handle->number && !r->put_off && !memcmp(r->secret, handle->secret, sizeof(r->secret)))
			return r;
	return NULL;
}

static int waiting_to_send(int socket)
{
	struct pollfd p = {.fd = socket, .events = POLLOUT};
	int n;

	while ((n = poll(&p, 1, PATIENCE)) < 0 && errno == EINTR)
		;
	return n > 0 && !(p.revents & (POLLERR | POLLHUP));
}

// put sends a message. The kernel takes only so many descriptors that were not received yet; then it is tried again.
static int put(int socket, const void *bytes, size_t size, const int *files, unsigned count)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int) * IPC_BATCH)]; } control;
	struct iovec part = {(void *)bytes, size};
	struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};

	if (count) {
		m.msg_control = control.bytes;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		memset(control.bytes, 0, sizeof(control.bytes));
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int) * count), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), files, sizeof(int) * count);
	}
	for (int tries = 0; tries < PATIENCE; tries++) {
		if (sendmsg(socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 1;
		if (errno == ETOOMANYREFS)
			usleep(1000);
		else if (errno != EINTR && (errno != EAGAIN || !waiting_to_send(socket)))
			return 0;
	}
	return 0;
}

// export_batch makes descriptors of the next pieces, and writes their sizes. An allocation may end between two batches.
static CUresult export_batch(const struct ipc_handle *handle, unsigned from, int *files, uint64_t *sizes, unsigned *n)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	struct range *range;

	*n = 0;
	table_lock();
	range = named(handle);
	if (range)
		for (r = CUDA_SUCCESS; r == CUDA_SUCCESS && *n < IPC_BATCH && from + *n < range->count; ++*n) {
			struct piece *p = &range->pieces[from + *n];

			r = shared_pass(p, &files[*n]);
			if (r != CUDA_SUCCESS)
				break;
			sizes[*n] = p->bytes;
		}
	table_unlock();
	return r;
}

// send_pieces sends what a handle is of. Nothing is sent after an error.
static int send_pieces(int socket, const struct ipc_handle *handle, unsigned count)
{
	uint64_t sizes[IPC_BATCH];
	int files[IPC_BATCH], ok = 1;

	for (unsigned at = 0, n; ok && at < count; at += n) {
		thread_hold();
		ok = export_batch(handle, at, files, sizes, &n) == CUDA_SUCCESS && n && put(socket, sizes, n * sizeof(*sizes), files, n);
		for (unsigned i = 0; i < n; i++)
			close(files[i]);
		thread_let_go();
	}
	return ok;
}

static void answer(int socket, const struct ipc_handle *handle)
{
	struct ipc_answer a = {.result = CUDA_ERROR_INVALID_VALUE};
	struct range *range;

	table_lock();
	range = named(handle);
	if (range) {
		a.result = CUDA_SUCCESS;
		a.count = range->count;
		a.bytes = range->bytes;
	}
	table_unlock();
	if (put(socket, &a, sizeof(a), NULL, 0) && a.result == CUDA_SUCCESS)
		send_pieces(socket, handle, a.count);
}

void lend(uint64_t value)
{
	struct ipc_handle handle;
	struct sockaddr_un name;
	unsigned length;

	thread_hold();
	length = ipc_name(&name, process, value);
	serving = ipc_socket();
	if (serving >= 0 && (connect(serving, (struct sockaddr *)&name, length) || !ipc_peer(serving))) {
		close(serving);
		serving = -1;
	}
	thread_let_go();
	if (serving < 0)
		return;
	if (ipc_ready(serving, PATIENCE) && recv(serving, &handle, sizeof(handle), MSG_DONTWAIT) == sizeof(handle))
		answer(serving, &handle);
	thread_hold();
	close(serving);
	serving = -1;
	thread_let_go();
}

void lend_forked(void)
{
	if (serving >= 0)
		close(serving);
	serving = -1;
	memset(process, 0, sizeof(process));
	last = 0;
}
