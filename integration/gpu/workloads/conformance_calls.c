// Calls, and their lines.
#include "conformance.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>

static char line[8192];
static size_t used;
static const char *test = "";
static int number, result;
static void *libcuda, *libcudart;

void print(const char *bytes, size_t n)
{
	while (n > 0) {
		ssize_t written = write(1, bytes, n);

		if (written < 0 && errno != EINTR)
			_exit(9);
		if (written > 0) {
			bytes += written;
			n -= written;
		}
	}
}

static void add(const char *format, va_list list)
{
	int n = vsnprintf(line + used, sizeof(line) - used - 2, format, list);

	if (n > 0)
		used += n;
	if (used > sizeof(line) - 3)
		used = sizeof(line) - 3;
}

void text(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	add(format, list);
	va_end(list);
}

void end(void)
{
	if (!used)
		return;
	line[used++] = '\n';
	print(line, used);
	used = 0;
}

void note(const char *format, ...)
{
	va_list list;

	end();
	text("%s %d ", test, number++);
	va_start(list, format);
	add(format, list);
	va_end(list);
	end();
}

// died ends a test whose call has ended in a signal.
static void died(int signal)
{
	static const char *const names[] = {[SIGSEGV] = "SIGSEGV", [SIGBUS] = "SIGBUS", [SIGFPE] = "SIGFPE", [SIGILL] = "SIGILL", [SIGABRT] = "SIGABRT", [SIGALRM] = "no end"};

	text(" = %s", names[signal]);
	end();
	_exit(8);
}

void *function(const char *name)
{
	return !strncmp(name, "cuda", 4) ? libcudart ? dlsym(libcudart, name) : NULL : libcuda ? dlsym(libcuda, name) : NULL;
}

void begun(const char *name, const char *what)
{
	end();
	text("%s %d %s(%s)", test, number++, name, what);
}

int returned(int r)
{
	if (r == ABSENT)
		text(" absent");
	else
		text(" = %d", r);
	return result = r;
}

static int make(void *f, const u64 *a, size_t count)
{
	u64 w[12] = {0};

	memcpy(w, a, count * sizeof(*a));
	return ((int (*)(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64))f)(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11]);
}

int call(const char *name, const char *what, const u64 *arguments, size_t count)
{
	void *f = function(name);

	begun(name, what);
	return returned(f ? make(f, arguments, count) : ABSENT);
}

int quiet(const char *name, const u64 *arguments, size_t count)
{
	void *f = function(name);
	int r = f ? make(f, arguments, count) : ABSENT;

	if (r != 0)
		note("%s to prepare = %d", name, r);
	return r;
}

void value(const char *name, u64 n) { text(" %s=%lld", name, (long long)n); }

static struct { char name[16]; ptr at; size_t bytes; } places[64];
#define PLACES (sizeof(places) / sizeof(*places))

void known(const char *name, ptr at, size_t bytes)
{
	forget(name);
	for (size_t i = 0; i < PLACES; i++)
		if (!places[i].name[0]) {
			snprintf(places[i].name, sizeof(places[i].name), "%s", name);
			places[i].at = at;
			places[i].bytes = bytes;
			return;
		}
}

void forget(const char *name)
{
	for (size_t i = 0; i < PLACES; i++)
		if (!strcmp(places[i].name, name))
			places[i].name[0] = 0;
}

void address(const char *name, ptr at)
{
	if (!at) {
		text(" %s=0", name);
		return;
	}
	for (size_t i = 0; i < PLACES; i++)
		if (places[i].name[0] && at >= places[i].at && at - places[i].at <= places[i].bytes) {
			text(" %s=%s+%llu", name, places[i].name, (unsigned long long)(at - places[i].at));
			return;
		}
	text(" %s=elsewhere", name);
}

static size_t available(void)
{
	size_t free = 0, total = 0;

	quiet("cuMemGetInfo_v2", (u64[]){W(&free), W(&total)}, 2);
	return free;
}

static size_t before;

void memory_now(void) { before = available(); }

void room(void)
{
	long long less = (long long)before - (long long)available();

	text(" taken=%lldMiB", (less + (less < 0 ? -1 : 1) * (long long)MIB) / (2 * (long long)MIB) * 2);
}

static unsigned char byte_at(size_t i, unsigned seed) { return (unsigned char)((i * 2654435761u + seed * 40503u) >> 13 ^ i); }

void pattern(void *to, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		((unsigned char *)to)[i] = byte_at(i, seed);
}

int same(const void *what, size_t bytes, unsigned seed)
{
	for (size_t i = 0; i < bytes; i++)
		if (((const unsigned char *)what)[i] != byte_at(i, seed))
			return 0;
	return 1;
}

// Of large memory, both ends and what is about the borders of pieces count.
static size_t looked(size_t bytes) { return bytes < 64 * KIB ? bytes : 64 * KIB; }

void fill(ptr at, size_t bytes, unsigned seed)
{
	static char some[64 << 10];
	size_t n = looked(bytes);

	pattern(some, n, seed);
	DO(cuMemcpyHtoD_v2, at, some, n);
	if (bytes > n)
		DO(cuMemcpyHtoD_v2, at + bytes - n, some, n);
	DO(cuCtxSynchronize, 0); // copies so small may be under way, and other contexts do not wait for them
}

void holds(ptr at, size_t bytes, unsigned seed)
{
	static char some[64 << 10];
	size_t n = looked(bytes);
	int r, ok;

	memset(some, 0, n);
	r = make(function("cuMemcpyDtoH_v2"), (u64[]){W(some), at, n}, 3);
	ok = r == 0 && same(some, n, seed);
	if (ok && bytes > n) {
		memset(some, 0, n);
		r = make(function("cuMemcpyDtoH_v2"), (u64[]){W(some), at + bytes - n, n}, 3);
		ok = r == 0 && same(some, n, seed);
	}
	if (r)
		text(" contents=error %d", r);
	else
		text(" contents=%s", ok ? "right" : "wrong");
}

static void *current;
static int initialized;

void *context(void)
{
	if (!initialized) {
		initialized = 1;
		if (DO(cuInit, 0))
			_exit(7);
	}
	DO(cuDevicePrimaryCtxRetain, &current, 0);
	DO(cuCtxSetCurrent, current);
	return current;
}

// attribute adds what one has come to: identities only by whether there is one.
static void attribute(int which, const u64 *data)
{
	switch (which) {
	case 1: text(" %s", !data[0] ? "none" : (void *)data[0] == current ? "current" : "other"); break;
	case 3: case 11: case 19: address("at", data[0]); break;
	case 4: address("at", data[0]); break;
	case 5: break;
	case 7: case 17: case 20: text(" %s", data[0] ? "some" : "0"); break;
	case 6: case 8: case 10: case 13: case 15: case 21: value("is", data[0] & 0xff); break;
	case 2: case 9: case 16: value("is", (u64)(int64_t)(int)data[0]); break;
	default: value("is", data[0]);
	}
}

void attributes(const char *what, ptr at)
{
	static const int all[] = {1, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
	enum { N = sizeof(all) / sizeof(*all) };
	u64 data[N][2];
	void *to[N];
	int which[N];
	char name[64];

	for (int i = 1; i <= 23; i++) {
		u64 one[2] = {0, 0};

		snprintf(name, sizeof(name), "%s, %d", what, i);
		if (CALL(cuPointerGetAttribute, name, one, i, at) == 0)
			attribute(i, one);
	}
	memset(data, 0, sizeof(data));
	for (int i = 0; i < N; i++) {
		to[i] = data[i];
		which[i] = all[i];
	}
	snprintf(name, sizeof(name), "%s, all", what);
	if (CALL(cuPointerGetAttributes, name, N, which, to, at) == 0)
		for (int i = 0; i < N; i++) {
			text(" %d:", which[i]);
			attribute(which[i], data[i]);
		}
	end();
}

void calls_open(void)
{
	static const char *const runtimes[] = {"libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};

	libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	for (size_t i = 0; i < sizeof(runtimes) / sizeof(*runtimes) && !libcudart; i++)
		libcudart = dlopen(runtimes[i], RTLD_NOW);
}

void calls_begin(const char *name, int seconds)
{
	for (int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}, i = 0; i < 6; i++)
		signal(signals[i], died);
	signal(SIGPIPE, SIG_IGN); // of a second process that is gone
	test = name;
	alarm(seconds);
}
