// System calls that read or write managed memory. The kernel does not raise SIGSEGV for them: they fail with EFAULT. So what a program passes to the C library's functions is brought to the host first, and again where a
// call that starts work has taken it away meanwhile. A system call that is made in another way fails.
#define _GNU_SOURCE
#include "managed.h"
#include "elf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define OFFERED __attribute__((visibility("default")))

// TRIES is how often a call is made again at most.
#define TRIES 1000

static void bring(const void *memory, size_t bytes, int writes)
{
	if (managed_near((uintptr_t)memory, bytes))
		managed_bring((uintptr_t)memory, bytes, writes);
}

static void bring_all(const struct iovec *parts, size_t count, int writes)
{
	for (size_t i = 0; i < count; i++)
		bring(parts[i].iov_base, parts[i].iov_len, writes);
}

static int near_any(const struct iovec *parts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (managed_near((uintptr_t)parts[i].iov_base, parts[i].iov_len))
			return 1;
	return 0;
}

// CALL is a function of the C library that makes a system call. near is true where it may have to do with managed memory, and first brings that.
#define CALL(type, name, arguments, call, near, first) \
	OFFERED type name arguments \
	{ \
		static __typeof__(name) *next; \
		type r = -1; \
 \
		if (!next) \
			next = (__typeof__(next))elf_behind(#name); \
		if (__builtin_expect(!(near), 1)) \
			return next call; \
		for (int i = 0; i < TRIES; i++) { \
			first; \
			r = next call; \
			if (r >= 0 || errno != EFAULT) \
				break; \
		} \
		return r; \
	}
#define PLAIN(name, memory, bytes, arguments, call, writes) CALL(ssize_t, name, arguments, call, managed_near((uintptr_t)(memory), bytes), bring(memory, bytes, writes))
#define PARTS(name, parts, count, arguments, call, writes) CALL(ssize_t, name, arguments, call, near_any(parts, count), bring_all(parts, count, writes))

// whole returns whether a descriptor is of a file. A call reads or writes all that is asked for of a file, unless the file ends; of a stream it reads what has come.
static int whole(int fd)
{
	int error = errno, positioned = lseek(fd, 0, SEEK_CUR) >= 0;

	errno = error;
	return positioned;
}

// ON_FILE is PLAIN for calls that files have. If a launch takes memory away in the middle of a call, the call has done a part only. For a file, the function then makes the call again for the rest. done counts the bytes.
#define ON_FILE(name, type, arguments, call, writes) \
	OFFERED ssize_t name arguments \
	{ \
		static __typeof__(name) *next; \
		size_t done = 0; \
		ssize_t r; \
 \
		if (!next) \
			next = (__typeof__(next))elf_behind(#name); \
		if (__builtin_expect(!managed_near((uintptr_t)memory, bytes), 1)) \
			return next call; \
		for (int i = 0; i < TRIES; i++) { \
			bring((type *)memory + done, bytes - done, writes); \
			r = next call; \
			if (r > 0) \
				done += r; \
			if (r < 0 ? errno != EFAULT : !r || done == bytes || !whole(fd)) \
				break; \
		} \
		return done ? (ssize_t)done : r; \
	}
ON_FILE(read, char, (int fd, void *memory, size_t bytes), (fd, (char *)memory + done, bytes - done), 1)
ON_FILE(write, const char, (int fd, const void *memory, size_t bytes), (fd, (const char *)memory + done, bytes - done), 0)
ON_FILE(pread, char, (int fd, void *memory, size_t bytes, off_t at), (fd, (char *)memory + done, bytes - done, at + done), 1)
ON_FILE(pwrite, const char, (int fd, const void *memory, size_t bytes, off_t at), (fd, (const char *)memory + done, bytes - done, at + done), 0)
ON_FILE(pread64, char, (int fd, void *memory, size_t bytes, off64_t at), (fd, (char *)memory + done, bytes - done, at + done), 1)
ON_FILE(pwrite64, const char, (int fd, const void *memory, size_t bytes, off64_t at), (fd, (const char *)memory + done, bytes - done, at + done), 0)

PLAIN(recv, memory, bytes, (int fd, void *memory, size_t bytes, int flags), (fd, memory, bytes, flags), 1)
PLAIN(send, memory, bytes, (int fd, const void *memory, size_t bytes, int flags), (fd, memory, bytes, flags), 0)
PLAIN(recvfrom, memory, bytes, (int fd, void *restrict memory, size_t bytes, int flags, struct sockaddr *restrict from, socklen_t *restrict length), (fd, memory, bytes, flags, from, length), 1)
PLAIN(sendto, memory, bytes, (int fd, const void *memory, size_t bytes, int flags, const struct sockaddr *to, socklen_t length), (fd, memory, bytes, flags, to, length), 0)
PARTS(readv, parts, count, (int fd, const struct iovec *parts, int count), (fd, parts, count), 1)
PARTS(writev, parts, count, (int fd, const struct iovec *parts, int count), (fd, parts, count), 0)
PARTS(preadv, parts, count, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), 1)
PARTS(pwritev, parts, count, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at), 0)
PARTS(recvmsg, m->msg_iov, m->msg_iovlen, (int fd, struct msghdr *m, int flags), (fd, m, flags), 1)
PARTS(sendmsg, m->msg_iov, m->msg_iovlen, (int fd, const struct msghdr *m, int flags), (fd, m, flags), 0)

// Streams make system calls of their own, with the program's memory or a buffer. So what is managed passes through memory of this call.
#define THROUGH ((size_t)32 << 10)

OFFERED size_t fread(void *restrict memory, size_t size, size_t count, FILE *restrict file)
{
	static __typeof__(fread) *next;
	char some[THROUGH];
	size_t done = 0, n = 1;

	if (!next)
		next = (__typeof__(next))elf_behind("fread");
	if (__builtin_expect(!managed_near((uintptr_t)memory, size * count), 1))
		return next(memory, size, count, file);
	for (; n && done < size * count; done += n) {
		n = size * count - done < THROUGH ? size * count - done : THROUGH;
		n = next(some, 1, n, file);
		memcpy((char *)memory + done, some, n);
	}
	return done / size;
}

OFFERED size_t fwrite(const void *restrict memory, size_t size, size_t count, FILE *restrict file)
{
	static __typeof__(fwrite) *next;
	char some[THROUGH];
	size_t done = 0, n = 1;

	if (!next)
		next = (__typeof__(next))elf_behind("fwrite");
	if (__builtin_expect(!managed_near((uintptr_t)memory, size * count), 1))
		return next(memory, size, count, file);
	for (; n && done < size * count; done += n) {
		n = size * count - done < THROUGH ? size * count - done : THROUGH;
		memcpy(some, (const char *)memory + done, n);
		n = next(some, 1, n, file);
	}
	return done / size;
}
