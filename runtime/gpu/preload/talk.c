#define _GNU_SOURCE
#include "talk.h"
#include "bound.h"
#include "gate.h"
#include "able.h"
#include "hand.h"
#include "thread.h"

#include <errno.h>
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
#define STUCK 10000   // ms for the host to take an answer

enum { HELLO = 1, CLOSE, TABLE, GIVE, RELEASE, OPEN, MAKE, FILLED };

struct header { uint32_t magic; uint16_t version, kind; uint32_t id; int32_t result; uint32_t count, flags; };
struct entry { uint64_t address, size; uint8_t uuid[16]; uint32_t number, flags; };

// message is one that came.
struct message {
	struct header header;
	uint8_t payload[PAYLOAD];
	size_t size;
};

static int waiting_to_send(int socket)
{
	struct pollfd p = {.fd = socket, .events = POLLOUT};
	int n;

	while ((n = poll(&p, 1, STUCK)) < 0 && errno == EINTR)
		;
	return n > 0 && !(p.revents & (POLLERR | POLLHUP));
}

// answer sends one answer to a message. The kernel takes only so many descriptors that nobody has received yet; then it is tried again.
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

static int plain(int socket, const struct message *m, CUresult result)
{
	return answer(socket, m, (struct header){.result = result}, NULL, 0, NULL, 0);
}

static int hello(int socket, const struct message *m)
{
	struct { uint32_t state, pieces; char version[32], reason[512]; } text = {0};

	if (hand_state() == WHOLE) // behind the gate nothing is bound
		bound_check();
	text.state = hand_state();
	text.pieces = table_pieces();
	snprintf(text.version, sizeof(text.version), "%s", VERSION);
	if (unable_reason())
		snprintf(text.reason, sizeof(text.reason), "%s", unable_reason());
	return answer(socket, m, (struct header){0}, &text, offsetof(__typeof__(text), reason) + strlen(text.reason), NULL, 0);
}

static int table(int socket, const struct message *m)
{
	static struct entry entries[ENTRIES];
	struct cursor c = {0};
	uint32_t n = 0;

	if (hand_state() == WHOLE)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE);
	while (cursor_next(&c)) {
		struct entry *e = &entries[n];
		CUuuid uuid;
		CUresult r = driver.cuDeviceGetUuid(&uuid, c.range->device);

		if (r != CUDA_SUCCESS)
			return plain(socket, m, r);
		*e = (struct entry){.address = c.address, .size = c.piece->bytes, .number = c.number};
		memcpy(e->uuid, uuid.bytes, sizeof(e->uuid));
		if (++n == ENTRIES) {
			if (!answer(socket, m, (struct header){.count = n}, entries, n * sizeof(*e), NULL, 0))
				return 0;
			n = 0;
		}
	}
	return answer(socket, m, (struct header){.count = n, .flags = LAST}, entries, n * sizeof(*entries), NULL, 0);
}

// give_batch sends descriptors, and closes them.
static int give_batch(int socket, const struct message *m, const uint32_t *numbers, const int *files, unsigned n, unsigned flags)
{
	int ok = answer(socket, m, (struct header){.count = n, .flags = flags}, numbers, n * sizeof(*numbers), files, n);

	for (unsigned i = 0; i < n; i++)
		close(files[i]);
	return ok;
}

// refuse answers with an error, and closes descriptors that were to be given.
static int refuse(int socket, const struct message *m, CUresult r, const int *files, unsigned n)
{
	while (n-- > 0)
		close(files[n]);
	return plain(socket, m, r);
}

static int give(int socket, const struct message *m)
{
	struct cursor c = {0};
	uint32_t numbers[BATCH];
	int files[BATCH];
	unsigned n = 0;

	if (hand_state() != CLOSED)
		return plain(socket, m, CUDA_ERROR_ILLEGAL_STATE);
	while (cursor_next(&c)) {
		CUresult r;

		if (n == BATCH) {
			if (!give_batch(socket, m, numbers, files, n, 0))
				return 0;
			n = 0;
		}
		r = hand_export(c.piece, &files[n]);
		if (r != CUDA_SUCCESS)
			return refuse(socket, m, r, files, n);
		numbers[n++] = c.number;
	}
	if (!give_batch(socket, m, numbers, files, n, LAST))
		return 0;
	hand_given();
	return 1;
}

// make makes some pieces, and gives a descriptor of each.
static int make(int socket, const struct message *m)
{
	struct { uint32_t first, count; } wanted;
	uint32_t numbers[BATCH] = {0};
	int files[BATCH] = {0};

	if (m->size != sizeof(wanted))
		return 0;
	memcpy(&wanted, m->payload, sizeof(wanted));
	if (wanted.count > BATCH)
		return 0;
	for (unsigned n = 0; n < wanted.count; n++) {
		CUresult r = hand_make(m->header.count, wanted.first + n, &files[n]);

		if (r != CUDA_SUCCESS)
			return refuse(socket, m, r, files, n);
		numbers[n] = wanted.first + n;
	}
	return give_batch(socket, m, numbers, files, wanted.count, LAST);
}

static int close_gate(int socket, const struct message *m)
{
	uint32_t ms;
	CUresult r;

	if (m->size != sizeof(ms))
		return 0;
	memcpy(&ms, m->payload, sizeof(ms));
	thread_let_go(); // it may take as long as the host says, and opens nothing
	r = hand_close(ms);
	thread_hold();
	return plain(socket, m, r);
}

static int serve(int socket, const struct message *m)
{
	switch (m->header.kind) {
	case HELLO: return hello(socket, m);
	case CLOSE: return close_gate(socket, m);
	case TABLE: return table(socket, m);
	case GIVE: return give(socket, m);
	case RELEASE: return plain(socket, m, hand_release());
	case MAKE: return make(socket, m);
	case FILLED: return plain(socket, m, hand_filled());
	case OPEN: return plain(socket, m, hand_open());
	}
	return plain(socket, m, CUDA_ERROR_NOT_SUPPORTED);
}

static int receive(int socket, struct message *m)
{
	struct iovec parts[] = {{&m->header, sizeof(m->header)}, {m->payload, sizeof(m->payload)}};
	struct msghdr got = {.msg_iov = parts, .msg_iovlen = 2};
	ssize_t n;

	while ((n = recvmsg(socket, &got, MSG_DONTWAIT)) < 0 && errno == EINTR)
		;
	m->size = n - (ssize_t)sizeof(m->header);
	return n >= (ssize_t)sizeof(m->header) && !(got.msg_flags & MSG_TRUNC) && m->header.magic == MAGIC && m->header.version == PROTOCOL;
}

int talk_once(int socket)
{
	static struct message m;

	return receive(socket, &m) && serve(socket, &m);
}
