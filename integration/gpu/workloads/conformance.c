// Conformance makes each call of the CUDA driver's and runtime's memory API, and each that asks about memory, and prints a line for each: its test and
// number in it, its name, what distinguishes it from others, its result, and what came of it, with addresses as offsets into allocations. Two runs on one GPU, with
// cryo's library and without, print the same lines but for those that begin with #.
//
//	conformance [--piece BYTES] [--only TEST] [--managed]
//
// Each test is a process of its own, so that an error that stays harms no other. --managed adds managed memory. At the end are the functions that libcuda does
// not have, and which of those that it has were not called: without managed memory, and multicast, which could take GPUs of a host out of service.
#define _GNU_SOURCE
#include "conformance.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

size_t piece = (size_t)256 << 20;
static char piece_text[32] = "268435456";

// The memory API of the driver, by cuda.h of CUDA 12 and 13.
static const char *const names[] = {
#define NAME(name) #name,
#include "conformance_names.h"
#undef NAME
};

static char self[4096];

static int start(char *const arguments[], int in, int out)
{
	int pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(in, 0);
	dup2(out, 1);
	execv(self, arguments);
	_exit(9);
}

struct other other(const char *what, const void *bytes, size_t size)
{
	static char hex[1024];
	int in[2], out[2];
	struct other o = {-1, -1, -1};

	end();
	for (size_t i = 0; i < size; i++)
		sprintf(hex + 2 * i, "%02x", ((const unsigned char *)bytes)[i]);
	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		return o;
	o.pid = start((char *[]){self, "--piece", piece_text, "--second", (char *)what, hex, NULL}, in[0], out[1]);
	close(in[0]);
	close(out[1]);
	o.in = in[1];
	o.out = out[0];
	return o;
}

void tell(struct other *o)
{
	end();
	if (write(o->in, "\n", 1) != 1)
		return; // it is gone, and finish says how
}

// hear passes on what the second process prints until it waits, as lines of this one's.
void hear(struct other *o)
{
	char all[4096], c;
	size_t n = 0;

	end();
	while (read(o->out, &c, 1) == 1) {
		if (c == '\f')
			return;
		if (c != '\n' && n < sizeof(all) - 1) {
			all[n++] = c;
			continue;
		}
		all[n] = 0;
		n = 0;
		note("%s", all);
	}
}

void finish(struct other *o)
{
	int status;

	end();
	close(o->in);
	hear(o);
	close(o->out);
	if (waitpid(o->pid, &status, 0) != o->pid || status)
		note("the second process ended with status %d", status);
}

void told(void)
{
	char c;

	end();
	if (read(0, &c, 1) != 1)
		_exit(6);
}

void say(void)
{
	end();
	print("\f", 1);
}

int bytes_of(const char *hex, void *to, size_t size)
{
	for (size_t i = 0; i < size; i++) {
		unsigned byte;

		if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
			return 0;
		((unsigned char *)to)[i] = byte;
	}
	return 1;
}

// found asks cuGetProcAddress for each function: the plain name, for programs of CUDA 12 and of 13.
static void found(void)
{
	context();
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		char plain[128], *suffix;

		snprintf(plain, sizeof(plain), "%s", names[i]);
		suffix = strstr(plain, "_v");
		if (suffix && suffix[2] >= '0' && suffix[2] <= '9')
			*suffix = 0;
		for (int version = 12000; version <= 13000; version += 1000) {
			void *f = NULL;
			int status = -1;
			char what[160];

			snprintf(what, sizeof(what), "%s, %d", plain, version);
			CALL(cuGetProcAddress_v2, what, plain, &f, version, 0, &status);
			text(" %s status=%d", f ? "found" : "none", status);
		}
	}
}

static const struct test general_tests[] = {{"functions", found, 30}, {0}};
static const struct test *const groups[] = {general_tests, memory_tests, asked_tests, managed_tests, pool_tests, virtual_tests, mapped_tests, graph_tests, shared_tests, runtime_tests};
static unsigned char called[sizeof(names) / sizeof(*names)];

// watch passes on what a test prints, and marks which functions it has called.
static void watch(int out)
{
	FILE *f = fdopen(out, "r");
	char *l = NULL, name[128];
	size_t most = 0;

	while (getline(&l, &most, f) > 0) {
		fputs(l, stdout);
		if (sscanf(l, "%*s %*d %127[a-zA-Z0-9_](", name) == 1 || sscanf(l, "%*s %*d %*s %*d %127[a-zA-Z0-9_](", name) == 1)
			for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
				called[i] |= !strcmp(names[i], name);
	}
	free(l);
	fclose(f);
}

static void run(const struct test *t, int managed)
{
	int out[2], status = 0, pid;

	fflush(stdout);
	if (pipe2(out, O_CLOEXEC))
		exit(1);
	pid = start((char *[]){self, "--piece", piece_text, "--test", (char *)t->name, managed ? "--managed" : NULL, NULL}, 0, out[1]);
	close(out[1]);
	watch(out[0]);
	if (waitpid(pid, &status, 0) != pid || (status && !(WIFEXITED(status) && WEXITSTATUS(status) == 8)))
		printf("%s end status %d\n", t->name, status);
}

static void where(void)
{
	char l[512];
	int version = 0, mapped = 0;
	FILE *f = fopen("/proc/self/maps", "r");

	while (f && fgets(l, sizeof(l), f))
		mapped |= strstr(l, "libcryo-gpu.so") != NULL;
	if (f)
		fclose(f);
	f = fopen("/proc/driver/nvidia/version", "r");
	if (f && fgets(l, sizeof(l), f))
		printf("# %s", l);
	if (f)
		fclose(f);
	if (function("cuDriverGetVersion"))
		DO(cuDriverGetVersion, &version);
	printf("# libcuda %s, CUDA %d; libcudart %s; cryo's library %s\n", function("cuInit") ? "is here" : "is not here", version, function("cudaMalloc") ? "is here" : "is not here",
		mapped ? "is loaded" : "is not loaded");
}

static const char *only;

static void all(int managed)
{
	int lacking = 0, uncalled = 0;

	where();
	for (size_t g = 0; g < sizeof(groups) / sizeof(*groups); g++)
		for (const struct test *t = groups[g]; t->name; t++)
			if (!only || !strcmp(only, t->name))
				if (managed || strncmp(t->name, "managed", 7))
					run(t, managed);
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		if (!function(names[i])) {
			printf("# libcuda has no %s\n", names[i]);
			lacking++;
		}
		if (!called[i] && function(names[i]) && !only && !strstr(names[i], "Multicast") && (managed || strcmp(names[i], "cuMemAllocManaged"))) {
			printf("# not called: %s\n", names[i]);
			uncalled++;
		}
	}
	printf("# %zu functions, libcuda lacks %d, %d were not called\n", sizeof(names) / sizeof(*names), lacking, uncalled);
	fflush(stdout);
}

static void one(const char *name)
{
	for (size_t g = 0; g < sizeof(groups) / sizeof(*groups); g++)
		for (const struct test *t = groups[g]; t->name; t++)
			if (!strcmp(t->name, name)) {
				calls_begin(t->name, t->seconds);
				t->run();
				end();
				_exit(0); // exit would call the driver's handlers, which this program does not test
			}
	_exit(5);
}

int main(int count, char **arguments)
{
	const char *name = NULL, *what = NULL;
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int managed = 0;

	if (n <= 0)
		return 1;
	calls_open();
	for (int i = 1; i < count; i++) {
		if (!strcmp(arguments[i], "--piece") && i + 1 < count) {
			snprintf(piece_text, sizeof(piece_text), "%s", arguments[++i]);
			piece = strtoull(piece_text, NULL, 10);
		} else if (!strcmp(arguments[i], "--only") && i + 1 < count) {
			only = arguments[++i];
		} else if (!strcmp(arguments[i], "--test") && i + 1 < count) {
			name = arguments[++i];
		} else if (!strcmp(arguments[i], "--second") && i + 2 < count) {
			name = arguments[++i];
			what = arguments[++i];
		} else if (!strcmp(arguments[i], "--managed")) {
			managed = 1;
		} else {
			fprintf(stderr, "conformance: what is %s for?\n", arguments[i]);
			return 2;
		}
	}
	if (!name) {
		all(managed);
		return 0;
	}
	if (!what)
		one(name);
	calls_begin("second", 60);
	second(name, what);
	end();
	_exit(0);
}
