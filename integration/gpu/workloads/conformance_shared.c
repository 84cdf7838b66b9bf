// Memory and events that two processes share by the handles of cuIpcGetMemHandle and cuIpcGetEventHandle. The second process is this program once more;
// both take turns.
#include "conformance.h"

// opened is the argument of a second process.
struct opened { handle64 handle; u64 bytes, offset; };

static int open_handle(const char *what, ptr *p, const handle64 *handle, unsigned flags)
{
	int (*f)(ptr *, handle64, unsigned) = (int (*)(ptr *, handle64, unsigned))function("cuIpcOpenMemHandle_v2");

	begun("cuIpcOpenMemHandle_v2", what);
	return returned(f ? f(p, *handle, flags) : ABSENT);
}

static void sizes(void)
{
	size_t all[] = {1, 512, MIB, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1, 6 * MIB, piece + 2 * MIB};
	ptr made[sizeof(all) / sizeof(*all)] = {0};

	context();
	// The library has the driver make what is allocated after the first handle.
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		DO(cuMemAlloc_v2, &made[i], all[i]);
	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) {
		struct opened o = {.bytes = all[i]};
		handle64 again, middle;
		ptr p = made[i], base = 0;
		char what[64];
		struct other second;

		known("a", p, all[i]);
		fill(p, all[i], 11);
		DO(cuCtxSynchronize, 0);
		snprintf(what, sizeof(what), "%zu", all[i]);
		if (CALL(cuIpcGetMemHandle, what, &o.handle, p)) {
			DO(cuMemFree_v2, p);
			continue;
		}
		if (CALL(cuIpcGetMemHandle, "again", &again, p) == 0)
			text(" %s", !memcmp(&again, &o.handle, sizeof(again)) ? "the same" : "another");
		if (CALL(cuIpcGetMemHandle, "middle", &middle, p + all[i] / 2) == 0)
			text(" %s", !memcmp(&middle, &o.handle, sizeof(middle)) ? "the same" : "another");
		attributes("with a handle", p);
		open_handle("in its own process", &base, &o.handle, 1);
		second = other("open", &o, sizeof(o));
		hear(&second); // it has written its own
		begun("contents", "written by the second process");
		holds(p, all[i], 12);
		memory_now();
		CALL(cuMemFree_v2, "while another has it", p);
		DO(cuMemAlloc_v2, &base, all[i]); // in its place, perhaps
		tell(&second);
		finish(&second);
		open_handle("freed", &p, &o.handle, 1);
		DO(cuMemFree_v2, base);
	}
}

static void open_in(const struct opened *o)
{
	ptr p = 0, again = 0, base = 0;
	size_t bytes = 0;
	handle64 h;

	context();
	open_handle("flags 0", &p, &o->handle, 0);
	open_handle("flags 2", &p, &o->handle, 2);
	if (open_handle("", &p, &o->handle, 1))
		return say();
	known("o", p, o->bytes);
	begun("contents", "opened");
	holds(p, o->bytes, 11);
	if (CALL(cuMemGetAddressRange_v2, "opened", &base, &bytes, p + o->bytes / 2) == 0) {
		address("base", base);
		value("large", bytes >= o->bytes);
		value("exact", bytes == o->bytes);
	}
	attributes("opened", p);
	CALL(cuIpcGetMemHandle, "opened", &h, p);
	CALL(cuMemFree_v2, "opened", p);
	if (open_handle("again", &again, &o->handle, 1) == 0) {
		text(" %s", again == p ? "the same" : "another");
		CALL(cuIpcCloseMemHandle, "first of two", again);
		CALL(cuMemGetAddressRange_v2, "closed once", &base, NULL, p);
	}
	fill(p, o->bytes, 12);
	CALL(cuCtxSynchronize, "", 0);
	say();
	told();
	begun("contents", "freed by its owner");
	holds(p, o->bytes, 12);
	CALL(cuIpcCloseMemHandle, "middle", p + 1);
	CALL(cuIpcCloseMemHandle, "", p);
	CALL(cuIpcCloseMemHandle, "again", p);
	CALL(cuMemGetAddressRange_v2, "closed", &base, NULL, p);
}

// errors of handles that are none.
static void handles(void)
{
	handle64 h = {{0}}, other;
	void *pinned = NULL, *stream = NULL, *c = NULL;
	ptr p = 0, q = 0;

	context();
	DO(cuStreamCreate, &stream, 1);
	open_handle("of zeros", &q, &h, 1);
	memset(&h, 0xff, sizeof(h));
	open_handle("of ones", &q, &h, 1);
	CALL(cuIpcGetMemHandle, "NULL", &h, 0);
	CALL(cuIpcGetMemHandle, "garbage", &h, 0x1234500000);
	DO(cuMemHostAlloc, &pinned, 4096, 2);
	CALL(cuIpcGetMemHandle, "pinned", &h, pinned);
	if (DO(cuMemAllocAsync, &p, 4 * MIB, stream) == 0)
		CALL(cuIpcGetMemHandle, "of a pool", &h, p);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	CALL(cuIpcCloseMemHandle, "own memory", p);
	CALL(cuIpcCloseMemHandle, "NULL", 0);
	DO(cuMemFree_v2, p);
	CALL(cuIpcGetMemHandle, "freed", &h, p);
	DO(cuMemAlloc_v2, &p, 4 * MIB);
	DO(cuMemAlloc_v2, &q, 4 * MIB);
	DO(cuIpcGetMemHandle, &h, p);
	if (CALL(cuIpcGetMemHandle, "of another", &other, q) == 0)
		text(" %s", !memcmp(&other, &h, sizeof(h)) ? "the same" : "another");
	DO(cuCtxSetCurrent, c);
	CALL(cuIpcGetMemHandle, "without a context", &h, p);
	open_handle("without a context", &q, &h, 1);
	CALL(cuIpcCloseMemHandle, "without a context", p);
	context();
	CALL(cuIpcGetMemHandle, "no handle", NULL, p);
}

// lent allocates memory, fills it, and gets its handle; 0: there is none.
static int lent(struct opened *o, ptr *p)
{
	context();
	DO(cuMemAlloc_v2, p, o->bytes);
	fill(*p, o->bytes, 11);
	return DO(cuIpcGetMemHandle, &o->handle, *p) == 0;
}

// ended opens what a process that is gone had, and has a process end that has opened.
static void ended(void)
{
	struct opened o = {.bytes = 4 * MIB};
	struct other second;
	ptr p = 0;

	if (!lent(&o, &p))
		return;
	second = other("die", &o, sizeof(o));
	finish(&second);
	fill(p, 4 * MIB, 13);
	CALL(cuCtxSynchronize, "", 0);
	holds(p, 4 * MIB, 13);
	second = other("die", &o, sizeof(o)); // and once more
	finish(&second);
	CALL(cuMemFree_v2, "", p);
	second = other("late", &o, sizeof(o));
	finish(&second);
}

static void die_with(const struct opened *o)
{
	ptr p = 0;

	context();
	if (open_handle("", &p, &o->handle, 1) == 0)
		holds(p, o->bytes, 11);
}

// captured closes memory while a stream is captured, which work that is still to be done may use.
static void captured(void)
{
	struct opened o = {.bytes = 4 * MIB};
	struct other second;
	ptr p = 0;

	if (!lent(&o, &p))
		return;
	second = other("capture", &o, sizeof(o));
	finish(&second);
	begun("contents", "");
	holds(p, 4 * MIB, 11);
}

static void capture_with(const struct opened *o)
{
	void *stream = NULL, *graph = NULL;
	ptr p = 0, found = 0;

	context();
	DO(cuStreamCreate, &stream, 1);
	if (open_handle("", &p, &o->handle, 1))
		return;
	CALL(cuStreamBeginCapture_v2, "relaxed", stream, 2);
	CALL(cuIpcCloseMemHandle, "captured", p);
	CALL(cuMemGetAddressRange_v2, "closed", &found, NULL, p);
	CALL(cuIpcCloseMemHandle, "again", p);
	CALL(cuStreamEndCapture, "", stream, &graph);
	for (int i = 0; i < 2; i++)
		if (open_handle("after that", &p, &o->handle, 1) == 0) {
			holds(p, o->bytes, 11);
			CALL(cuIpcCloseMemHandle, "after that", p);
		}
}

static int open_event(const char *what, void **event, const handle64 *handle)
{
	int (*f)(void **, handle64) = (int (*)(void **, handle64))function("cuIpcOpenEventHandle");

	begun("cuIpcOpenEventHandle", what);
	return returned(f ? f(event, *handle) : ABSENT);
}

static void events(void)
{
	struct opened o = {.bytes = 0};
	void *event = NULL, *plain = NULL;
	struct other second;

	context();
	CALL(cuEventCreate, "for others, with times", &event, 4);
	DO(cuEventCreate, &plain, 0);
	CALL(cuIpcGetEventHandle, "not made for it", &o.handle, plain);
	if (CALL(cuEventCreate, "for others", &event, 4 | 2) || CALL(cuIpcGetEventHandle, "", &o.handle, event))
		return;
	CALL(cuEventRecord, "", event, 0);
	open_event("in its own process", &plain, &o.handle);
	second = other("event", &o, sizeof(o));
	hear(&second);
	CALL(cuEventDestroy_v2, "while another has it", event);
	tell(&second);
	finish(&second);
}

static void event_in(const struct opened *o)
{
	handle64 none = {{0}};
	void *event = NULL;

	context();
	open_event("of zeros", &event, &none);
	if (open_event("", &event, &o->handle))
		return say();
	CALL(cuEventSynchronize, "", event);
	CALL(cuEventQuery, "", event);
	CALL(cuStreamWaitEvent, "", 0, event, 0);
	CALL(cuEventRecord, "", event, 0);
	say();
	told();
	CALL(cuEventQuery, "destroyed by its owner", event);
	CALL(cuEventDestroy_v2, "", event);
}

void second(const char *what, const char *hex)
{
	struct opened o;

	if (!bytes_of(hex, &o, sizeof(o)))
		return;
	if (!strcmp(what, "open"))
		open_in(&o);
	else if (!strcmp(what, "capture"))
		capture_with(&o);
	else if (!strcmp(what, "runtime"))
		runtime_second(&o.handle);
	else if (!strcmp(what, "event"))
		event_in(&o);
	else
		die_with(&o);
}

const struct test shared_tests[] = {{"ipc", sizes, 120}, {"ipc-handles", handles, 30}, {"ipc-ended", ended, 60}, {"ipc-captured", captured, 60}, {"ipc-events", events, 60}, {0}};
