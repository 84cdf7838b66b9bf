#define _GNU_SOURCE
#include "talk.h"
#include "bound.h"
#include "gate.h"
#include "able.h"
#include "hand.h"
#include "host.h"
#include "managed.h"
#include "multicast.h"
#include "peers.h"
#include "precopy.h"
#include "shared.h"
#include "thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef VERSION
#define VERSION "unknown"
#endif

#define MAGIC 0x55504743 // "CGPU"
#define PROTOCOL 1
#define PAYLOAD (32 * 1024)
#define BATCH 32      // descriptors in a message
#define ENTRIES 500   // of the table in a message
#define LAST 1u       // flag of the last of several
#define TEAM 2u       // flag of a multicast object
#define STUCK 10000   // ms for the host to take an answer

enum { HELLO = 1, CLOSE, TABLE, GIVE, RELEASE, ATTACH, OPEN, OWN, MAKE, FILLED, BOOKS, SHARED, PART, EXPORT, IMPORT, PLACES, LEND, RETURN, STAND, UNBIND, JOIN, BIND };

struct header { uint32_t magic; uint16_t version, kind; uint32_t id; int32_t result; uint32_t count, flags; };
struct entry { uint64_t address, size; uint8_t uuid[16]; uint32_t number, flags; };

// message is one that came. Its descriptors are closed unless they are taken.
struct message {
	struct header header;
	uint8_t payload[PAYLOAD];
	size_t size;
	int files[BATCH];
	unsigned files_count;
};

static int waiting_to_send(int socket)
{
	struct pollfd p = {.fd = socket, .events = POLLOUT};
	int n;

	while ((n = poll(&p, 1, STUCK)) < 0 && errno == EINTR)
		;
	return n > 0 && !(p.revents & (POLLERR | POLLHUP));
}

// answer sends one answer to a message. The kernel takes only so many descriptors that were not received yet; then it is tried again.
static int answer(int socket, const struct message *m, struct header h, const void *payload, size_t size, const int *files, unsigned count)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int) * BATCH)]; } control;
	struct iovec parts[] = {{&h, sizeof(h)}, {(void *)payload, size}};
	struct msghdr sent = {.msg_iov = parts, .msg_iovlen = 2};
	int64_t until = now_ns() + STUCK * INT64_C(1000000);

	h.magic = MAGIC;
	h.version = PROTOCOL;
	h.kind = m->header.kind;
	h.id = m->header.id;
	if (count) {
		sent.msg_control = control.bytes;
		sent.msg_controllen = CMSG_SPACE(sizeof(int) * count);
		memset(control.bytes, 0, sizeof(control.bytes));
		control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int) * count), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(&control.header), files, sizeof(int) * count);
	}
	for (;;) {
		if (sendmsg(socket, &sent, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
			return 1;
		if (errno == ETOOMANYREFS && now_ns() < until)
			usleep(1000);
		else if (errno != EINTR && (errno != EAGAIN || !waiting_to_send(socket)))
			return 0;
	}
}

static int plain(int socket, const struct message *m, CUresult result, uint32_t count)
{
	return answer(socket, m, (struct header){.result = result, .count = count}, NULL, 0, NULL, 0);
}

// grow has the kernel's table of this process's descriptors grow before the program waits: where several threads run, that takes it some
// milliseconds each time.
static void grow(int socket)
{
	int fd = fcntl(socket, F_DUPFD_CLOEXEC, FILES + BATCH);

	if (fd >= 0)
		close(fd);
}

static int hello(int socket, const struct message *m)
{
	struct { uint32_t state, pieces, foreign, mistaken, stood; char version[32], reason[512]; } text = {0};
	const char *reason;

	if (hand_state() == WHOLE) { // behind the gate nothing is bound, and the program waits
		bound_check();
		hand_look();
		grow(socket);
	}
	reason = hand_reason();
	text.state = hand_state();
	text.pieces = hand_pieces();
	text.foreign = hand_foreign();
	text.mistaken = hand_mistaken();
	text.stood = hand_stood();
	snprintf(text.version, sizeof(text.version), "%s", VERSION);
	if (reason)
		snprintf(text.reason, sizeof(text.reason), "%s", reason);
	return answer(socket, m, (struct header){0}, &text, offsetof(__typeof__(text), reason) + strlen(text.reason), NULL, 0);
}

// entries_list has room for a message's entries of a list.
static struct entries_list { struct entry all[ENTRIES]; uint32_t count, number; } entries;

// entries_add adds one, and sends all where there is no more room. 0: the host has gone; -1: the driver has failed, which is the answer.
static int entries_add(int socket, const struct message *m, CUdeviceptr address, size_t bytes, CUdevice device)
{
	struct entry *e = &entries.all[entries.count];
	CUuuid uuid;
	CUresult r = driver.cuDeviceGetUuid(&uuid, device);

	if (r != CUDA_SUCCESS)
		return plain(socket, m, r, 0) ? -1 : 0;
	*e = (struct entry){.address = address, .size = bytes, .number = entries.number++};
	memcpy(e->uuid, uuid.bytes, sizeof(e->uuid));
	if (++entries.count < ENTRIES)
		return 1;
	entries.count = 0;
	return answer(socket, m, (struct header){.count = ENTRIES}, entries.all, sizeof(entries.all), NULL, 0);
}

static int entries_end(int socket, const struct message *m)
{
	return answer(socket, m, (struct header){.count = entries.count, .flags = LAST}, entries.all, entries.count * sizeof(*entries.all), NULL, 0);
}

static int table(int socket, const struct message *m)
{
	struct cursor c = {0};
	int ok = 1;

	if (hand_state() == WHOLE)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE, 0);
	entries.count = entries.number = 0;
	while (ok == 1 && cursor_next(&c))
		ok = entries_add(socket, m, c.address, c.piece->bytes, c.range->device);
	return ok == 1 ? entries_end(socket, m) : ok != 0;
}

// places is the table as it is while the program runs.
static int places(int socket, const struct message *m)
{
	const struct place *all;
	size_t count;
	int ok = 1;

	if (hand_state() != WHOLE)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE, 0);
	count = precopy_list(&all);
	entries.count = entries.number = 0;
	for (size_t i = 0; ok == 1 && i < count; i++)
		ok = entries_add(socket, m, all[i].address, all[i].bytes, all[i].device);
	precopy_list_end();
	return ok == 1 ? entries_end(socket, m) : ok != 0;
}

static int lend_piece(int socket, const struct message *m)
{
	struct { uint64_t address, bytes; } which;
	CUresult r = hand_state() == WHOLE ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
	uint32_t number = 0;
	int fd = -1, ok;

	if (m->size != sizeof(which))
		return 0;
	memcpy(&which, m->payload, sizeof(which));
	if (r == CUDA_SUCCESS)
		r = precopy_lend(which.address, which.bytes, &fd);
	if (r != CUDA_SUCCESS)
		return plain(socket, m, r, 0);
	ok = answer(socket, m, (struct header){.count = 1}, &number, sizeof(number), &fd, 1);
	close(fd);
	return ok;
}

// give_batch sends descriptors, and closes those that were made for it.
static int give_batch(int socket, const struct message *m, const uint32_t *numbers, int *files, const int *made, unsigned n, unsigned flags)
{
	int ok = answer(socket, m, (struct header){.count = n, .flags = flags}, numbers, n * sizeof(*numbers), files, n);

	for (unsigned i = 0; i < n; i++)
		if (made[i])
			close(files[i]);
	return ok;
}

static int give(int socket, const struct message *m)
{
	struct cursor c = {0};
	uint32_t numbers[BATCH];
	int files[BATCH], made[BATCH];
	unsigned n = 0;

	if (hand_state() != CLOSED)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE, 0);
	while (cursor_next(&c)) {
		CUresult r;

		if (n == BATCH) {
			if (!give_batch(socket, m, numbers, files, made, n, 0))
				return 0;
			n = 0;
		}
		r = hand_export(c.piece, &files[n]);
		if (r != CUDA_SUCCESS) {
			while (n-- > 0)
				if (made[n])
					close(files[n]);
			return plain(socket, m, r, 0);
		}
		numbers[n] = c.number;
		made[n] = files[n] != c.piece->fd;
		n++;
	}
	if (!give_batch(socket, m, numbers, files, made, n, LAST))
		return 0;
	hand_given();
	return 1;
}

// attach has a message with a count first, and then those with descriptors.
static int attach(int socket, struct message *m)
{
	static int begun;
	CUresult r = CUDA_SUCCESS;

	if (!m->size && !m->files_count) {
		r = hand_attach_begin(m->header.count);
		begun = r == CUDA_SUCCESS;
		if (begun && !m->header.count)
			r = hand_attach_end();
		return plain(socket, m, r, 0);
	}
	if (!begun)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE, 0);
	// Fewer descriptors than numbers: there was no room for more in this process.
	if (m->size != m->header.count * sizeof(uint32_t) || m->files_count != m->header.count) {
		hand_attach(UINT32_MAX, -1);
		r = CUDA_ERROR_OPERATING_SYSTEM;
	}
	for (unsigned i = 0; i < m->header.count && r == CUDA_SUCCESS; i++) {
		uint32_t number;

		memcpy(&number, m->payload + i * sizeof(number), sizeof(number));
		r = hand_attach(number, m->files[i]);
		m->files[i] = -1;
	}
	if (r == CUDA_SUCCESS)
		r = hand_attach_settle();
	if (r == CUDA_SUCCESS && m->header.flags & LAST)
		r = hand_attach_end();
	if (r != CUDA_SUCCESS)
		begun = 0;
	return plain(socket, m, r, 0);
}

static int make(int socket, const struct message *m)
{
	uint32_t number;
	CUresult r;
	int fd = -1, ok;

	if (m->size != sizeof(number))
		return 0;
	memcpy(&number, m->payload, sizeof(number));
	r = hand_make(m->header.count, number, &fd);
	if (r != CUDA_SUCCESS)
		return plain(socket, m, r, 0);
	ok = answer(socket, m, (struct header){.count = 1}, &number, sizeof(number), &fd, 1);
	close(fd);
	return ok;
}

static int books(int socket, const struct message *m)
{
	struct { uint32_t exports, imports, apart, peers, hosts; char reason[512]; } text = {0};
	unsigned multicasts = multicast_count();
	const char *reason = unknown_reason() ? unknown_reason() : peers_reason();
	struct shares s = shared_count();

	text.exports = s.exports;
	text.imports = s.imports;
	text.apart = s.apart;
	text.peers = peers_count();
	text.hosts = host_count() + managed_pinned();
	if (reason)
		snprintf(text.reason, sizeof(text.reason), "%s", reason);
	return answer(socket, m, (struct header){.count = multicasts, .flags = multicast_is_wild() ? TEAM : 0}, &text, offsetof(__typeof__(text), reason) + strlen(text.reason), NULL, 0);
}

// shared sends the descriptors by which memory was exported and imported.
static int shared(int socket, const struct message *m)
{
	struct { uint32_t number, kind, fd; } entries[BATCH];
	struct passed p = {0};
	int files[BATCH];
	unsigned n = 0;

	if (hand_state() != CLOSED)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE, 0);
	while (shared_next(&p)) {
		if (n == BATCH) {
			if (!answer(socket, m, (struct header){.count = n}, entries, sizeof(entries), files, n))
				return 0;
			n = 0;
		}
		entries[n] = (__typeof__(*entries)){p.number, shared_kind(&p), p.fd};
		files[n++] = p.fd;
	}
	return answer(socket, m, (struct header){.count = n, .flags = LAST}, entries, n * sizeof(*entries), files, n);
}

static int export(int socket, const struct message *m)
{
	CUresult r = hand_state() == CLOSED ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
	uint32_t number;
	int fd = -1, ok;

	if (m->size != sizeof(number))
		return 0;
	memcpy(&number, m->payload, sizeof(number));
	if (r == CUDA_SUCCESS)
		r = shared_export(number, &fd);
	if (r != CUDA_SUCCESS)
		return plain(socket, m, r, 0);
	ok = answer(socket, m, (struct header){.count = 1}, &number, sizeof(number), &fd, 1);
	close(fd);
	return ok;
}

static int import(int socket, struct message *m)
{
	CUresult r = hand_state() == CLOSED ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
	uint32_t place;

	if (m->size != sizeof(place))
		return 0;
	memcpy(&place, m->payload, sizeof(place));
	if (r == CUDA_SUCCESS && m->files_count != 1)
		r = CUDA_ERROR_OPERATING_SYSTEM; // there was no room for it in this process
	if (r == CUDA_SUCCESS) {
		r = shared_import(place, m->files[0], m->header.flags & TEAM);
		m->files[0] = -1;
	}
	return plain(socket, m, r, 0);
}

static CUresult close_within(uint32_t ms, int stay, uint32_t calls)
{
	CUresult r;

	thread_let_go(); // it may take as long as the host says, and opens nothing
	if (calls)
		hand_steps(calls);
	r = hand_close(ms, stay);
	thread_hold();
	return r;
}

static int close_gate(int socket, const struct message *m)
{
	uint32_t ms;

	if (m->size != sizeof(ms))
		return 0;
	memcpy(&ms, m->payload, sizeof(ms));
	return plain(socket, m, close_within(ms, 0, 0), 0);
}

// stand closes the gate by turns with other processes.
static int stand(int socket, const struct message *m)
{
	uint32_t request[2]; // ms, and how many calls each thread that waits may make before

	if (m->size != sizeof(request))
		return 0;
	memcpy(request, m->payload, sizeof(request));
	return plain(socket, m, close_within(request[0], 1, request[1]), 0);
}

static int serve(int socket, struct message *m)
{
	CUresult r;

	switch (m->header.kind) {
	case HELLO: return hello(socket, m);
	case CLOSE: return close_gate(socket, m);
	case STAND: return stand(socket, m);
	case TABLE: return table(socket, m);
	case GIVE: return give(socket, m);
	case RELEASE: return plain(socket, m, hand_release(), 0);
	case ATTACH: return attach(socket, m);
	case MAKE: return make(socket, m);
	case FILLED: return plain(socket, m, hand_filled(), 0);
	case BOOKS: return books(socket, m);
	case SHARED: return shared(socket, m);
	case PART: return plain(socket, m, hand_part(), 0);
	case EXPORT: return export(socket, m);
	case IMPORT: return import(socket, m);
	case UNBIND: return plain(socket, m, hand_unbind(), 0);
	case JOIN: return plain(socket, m, hand_join(), 0);
	case BIND: return plain(socket, m, hand_bind(), 0);
	case PLACES: return places(socket, m);
	case LEND: return lend_piece(socket, m);
	case RETURN:
		precopy_return();
		return plain(socket, m, CUDA_SUCCESS, 0);
	case OPEN: return plain(socket, m, hand_open(), 0);
	case OWN:
		r = hand_own();
		return plain(socket, m, r, hand_foreign());
	}
	return plain(socket, m, CUDA_ERROR_NOT_SUPPORTED, 0);
}

static int receive(int socket, struct message *m)
{
	union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int) * BATCH)]; } control;
	struct iovec parts[] = {{&m->header, sizeof(m->header)}, {m->payload, sizeof(m->payload)}};
	struct msghdr got = {.msg_iov = parts, .msg_iovlen = 2, .msg_control = control.bytes, .msg_controllen = sizeof(control)};
	ssize_t n;

	while ((n = recvmsg(socket, &got, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
		;
	m->files_count = 0;
	for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&got) : NULL; c; c = CMSG_NXTHDR(&got, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		m->files_count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(m->files, CMSG_DATA(c), m->files_count * sizeof(int));
	}
	m->size = n - (ssize_t)sizeof(m->header);
	return n >= (ssize_t)sizeof(m->header) && !(got.msg_flags & MSG_TRUNC) && m->header.magic == MAGIC && m->header.version == PROTOCOL;
}

int talk_once(int socket)
{
	static struct message m;
	int more = receive(socket, &m) && serve(socket, &m);

	for (unsigned i = 0; i < m.files_count; i++)
		if (m.files[i] >= 0)
			close(m.files[i]);
	return more;
}
