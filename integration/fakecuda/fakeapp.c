// fakeapp is a program with device memory, for tests of checkpoints under the fake driver. It fills memory on each of its devices with a
// pattern, counts, and answers on a unix socket as integration/workload does.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const char usage[] =
	"fakeapp [--processes N] [--watch] [--nvml plain|events|apart] [--watchers N] [--watching-children N] [--no-cuda] [--apart] [--mib N] [--blocks MIB,MIB...] [--kinds KIND,KIND...] [--kernel MS] [--managed] [--peer] [--share MIB | --share-host MIB] [--multicast MIB [--fabric]] [--casts] [--storm N] [--captures N] [--poll] [--reduce CALLS] [--churn MIB] [--alternate MIB [--preferred]] [--pool] [--bind direct|dlsym|proc]\n"
	"        [--quiet] [--socket PATH]\n"
	"  each of N processes, but for the last one where it is to watch, which only has the driver's device files open, or NVML (with an event set; without the driver's library), by N threads and in children that it forks, holds that much on each device, or (apart) on one alone, by turns, or allocations of these sizes, and a block that all others import (share), on a device or on the host, and a multicast object of all devices to which each binds so much (multicast; for fabric handles: fabric), of the kinds plain, whole, chunks, released, retained, held, twice, exported and blank (mapped.c), and launches a\n"
	"  kernel of MS milliseconds at its start; a thread asks (poll) all the time whether a stream is idle, or (reduce) launches kernels all the time that meet those of all other processes, which but for the first make so many calls between two of them, or (casts) makes multicast objects with all others, or (churn) writes to memory all the time, which it compares before, or (alternate) has host and device change managed memory by turns, a part of it of a pool (pool; without alternate, the pool is empty); N threads of it allocate, copy, compare and free all the time, or capture graphs; its calls are bound by the linker, dlsym or\n"
	"  cuGetProcAddress\n"
	"It answers one line of JSON to one line on the socket (/srv/ask.sock):\n"
	"  check        reads all device memory of all processes; waits while the driver is locked\n"
	"  count        never waits\n"
	"  change KEY   fills device memory anew\n"
	"  launch MS    starts a kernel in each process\n"
	"  ranges       asks for the bounds of each allocation\n"
	"  ipc          asks for a handle of an allocation, for other processes\n"
	"  lend BLOCK   the same of that allocation on the first device, with the handle and a sum of what is in it\n"
	"  borrow HANDLE  opens what another process has lent; all others' pattern is in it, by that sum\n"
	"  borrowed     tells the sum of it again\n"
	"  return       closes it\n"
	"  export BLOCK exports an allocation with a handle on the first device\n"
	"  dmabuf       gives memory to another device for a moment\n"
	"  park WHERE   stops what alternates when the host or the device has changed it, or has it run\n"
	"  leave        gives the multicast object up\n"
	"  capture MODE begins to capture a stream into a graph, 0: global, 1: of one thread, 2: relaxed\n"
	"  captured     ends that; an error where the capture was lost\n"
	"  captured MS  ends it so much later, when the connection is gone; whether it was lost is said by check\n"
	"  limit DEVICE BYTES  sets the stack that a thread may have there\n"
	"  fork N       starts N children without CUDA, which sleep as long as the process lives\n"
	"  forking MS   starts a child without CUDA every MS milliseconds, which ends, or runs another program, soon; 0: no more\n"
	"  spawn        starts another fakeapp, which answers at /srv/spawned.sock, whatever the driver does\n"
	"  drop         destroys the contexts and makes everything anew\n"
	"  exit STATUS\n";

struct options options = {
	.processes = 1, .watchers = 2, .blocks = 1, .block = {1}, .mib = 1, .socket = "/srv/ask.sock", .bind = "direct",
};

int number, devices, first;
CUcontext contexts[MAX_DEVICES];
CUdeviceptr counter;
uint64_t key = 1, ticks;
static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER; // over all of these

// The others, known to the first: a socket each, on which a command has one line for an answer.
static struct { FILE *in, *out; pthread_mutex_t asked; } others[MAX_PROCESSES];
static unsigned count; // of the first
static char life[33];

__attribute__((noreturn)) void die(const char *what, int code)
{
	fprintf(stderr, "fakeapp: %s: %d\n", what, code);
	exit(1);
}

void must(const char *what, CUresult r)
{
	if (r != CUDA_SUCCESS)
		die(what, r);
}

// tick counts up on the device.
static void *tick(void *unused)
{
	struct timespec pause = {0, 100000000};
	uint64_t on_device;

	(void)unused;
	for (;; nanosleep(&pause, NULL)) {
		pthread_mutex_lock(&own);
		must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
		must("cuMemcpyDtoH", cuda.cuMemcpyDtoH_v2(&on_device, counter, sizeof(on_device)));
		if (on_device != ticks)
			die("the counter on the device is wrong", on_device);
		ticks++;
		must("cuMemcpyHtoD", cuda.cuMemcpyHtoD_v2(counter, &ticks, sizeof(ticks)));
		pthread_mutex_unlock(&own);
	}
	return NULL;
}

// append adds to a text that holds size bytes.
__attribute__((format(printf, 3, 4))) static void append(char *text, size_t size, const char *format, ...)
{
	size_t used = strlen(text);
	va_list args;

	va_start(args, format);
	vsnprintf(text + used, size - used, format, args);
	va_end(args);
}

// answer_own does a command in this process: "ok JSON", or "error WORDS".
static void answer_own(const char *command, char *text, size_t size)
{
	unsigned long argument = 0;
	char uuid[41], handle[129] = "";
	uint64_t sum = 0;
	int device, r = 0;

	*text = 0;
	pthread_mutex_lock(&own);
	must("cuCtxSetCurrent", cuda.cuCtxSetCurrent(contexts[0]));
	if (sscanf(command, "launch %lu", &argument) == 1) {
		r = devices_launch(argument);
	} else if (sscanf(command, "change %lu", &argument) == 1) {
		key = argument;
		for (int d = 0; d < devices && !r; d++)
			r = devices_over(d, 1);
		if (!r && options.share)
			r = exchange_over(1);
		if (!r && options.multicast)
			r = team_over(1);
	} else if (!strcmp(command, "offer")) {
		r = exchange_offer();
	} else if (!strcmp(command, "accept")) {
		r = exchange_accept();
	} else if (!strcmp(command, "ranges")) {
		for (int d = 0; d < devices && !r; d++)
			r = devices_ranges(d);
	} else if (!strcmp(command, "ipc")) {
		r = devices_handle();
	} else if (sscanf(command, "lend %lu", &argument) == 1) {
		r = shared_lend(argument, handle, &sum);
	} else if (!strcmp(command, "borrowed")) {
		r = shared_sum(&sum);
	} else if (sscanf(command, "borrow %128s", handle) == 1) {
		r = shared_borrow(handle, &sum);
	} else if (!strcmp(command, "return")) {
		r = shared_return();
	} else if (sscanf(command, "export %lu", &argument) == 1) {
		r = mapped_export(argument);
	} else if (!strcmp(command, "dmabuf")) {
		r = devices_lend();
	} else if (!strcmp(command, "make")) {
		r = team_make();
	} else if (!strcmp(command, "join")) {
		r = team_join();
	} else if (!strcmp(command, "bind")) {
		r = team_bind();
	} else if (!strcmp(command, "leave")) {
		r = team_leave();
		options.multicast = 0;
	} else if (sscanf(command, "capture %lu", &argument) == 1) {
		r = graphs_begin(argument);
	} else if (!strcmp(command, "captured")) {
		r = graphs_end();
	} else if (sscanf(command, "captured %lu", &argument) == 1) {
		r = graphs_end_later(argument);
	} else if (sscanf(command, "limit %d %lu", &device, &argument) == 2) {
		r = devices_limit(device, argument);
	} else if (sscanf(command, "fork %lu", &argument) == 1) {
		r = children_start(argument);
	} else if (sscanf(command, "forking %lu", &argument) == 1) {
		r = children_churn(argument);
	} else if (sscanf(command, "park %128s", handle) == 1) {
		r = alternate_park(handle);
	} else if (!strcmp(command, "drop")) {
		devices_drop();
	} else {
		r = children_lost() ? -3 : watch_failed() ? -4 : graphs_late();
		for (int d = 0; d < devices && !r; d++)
			r = devices_over(d, 0);
		if (!r && options.share)
			r = exchange_over(0);
		if (!r && options.multicast)
			r = team_over(0);
		if (!r && options.churn)
			r = churn_check();
		if (!r && options.alternate)
			r = alternate_check();
	}
	if (r == 0)
		append(text, size, "ok {\"pid\":%d,\"bytes\":%zu,\"ticks\":%llu,\"rounds\":%llu,\"saved\":%zu,\"devices\":[", getpid(), ((size_t)options.mib << 20) * devices,
			(unsigned long long)ticks, storm_rounds() + casts_rounds() + alternate_rounds(), fakecuda_saved());
	else if (r == -1)
		append(text, size, "error device memory of process %d is damaged", getpid());
	else if (r == -2)
		append(text, size, "error the bounds of device memory of process %d are not what they were", getpid());
	else if (r == -4)
		append(text, size, "error process %d: NVML says %d", getpid(), watch_failed());
	else if (r == -3)
		append(text, size, "error a child of process %d has ended", getpid());
	else
		append(text, size, "error process %d: the driver says %d", getpid(), r);
	for (int d = 0; d < devices && r == 0; d++) {
		devices_uuid(d, uuid);
		append(text, size, "%s\"%s\"", d ? "," : "", uuid);
	}
	if (r == 0) {
		append(text, size, "],\"limits\":[");
		for (int d = 0; d < devices; d++)
			append(text, size, "%s%zu", d ? "," : "", devices_limit_of(d));
		append(text, size, "],\"handle\":\"%s\",\"sum\":%llu}", handle, (unsigned long long)sum);
	}
	pthread_mutex_unlock(&own);
}

// answer_other has another process do it.
static void answer_other(int n, const char *command, char *text, size_t size)
{
	pthread_mutex_lock(&others[n].asked);
	if (fprintf(others[n].out, "%s\n", command) < 0 || fflush(others[n].out) || !fgets(text, size, others[n].in))
		snprintf(text, size, "error process number %d is gone", n + 1);
	text[strcspn(text, "\n")] = 0;
	pthread_mutex_unlock(&others[n].asked);
}

// reply answers one connection.
static void *reply(void *connection)
{
	int fd = (intptr_t)connection, status;
	char command[256], text[1024], error[256] = "";
	size_t size = sizeof(text) * options.processes;
	char *state = calloc(1, size);
	ssize_t n = read(fd, command, sizeof(command) - 1);

	if (!state || n <= 0)
		goto out;
	command[n] = 0;
	command[strcspn(command, "\n")] = 0;
	if (sscanf(command, "exit %d", &status) == 1) {
		dprintf(fd, "{\"kind\":\"gpu\",\"life\":\"%s\",\"pid\":%d,\"count\":%u,\"ok\":true}\n", life, getpid(), count);
		usleep(50000);
		_exit(status);
	}
	if (!strcmp(command, "spawn")) {
		char *const words[] = {"fakeapp", "--quiet", "--socket", "/srv/spawned.sock", NULL};
		pid_t pid;

		status = posix_spawn(&pid, "/fake/fakeapp", NULL, NULL, words, environ);
		dprintf(fd, "{\"kind\":\"gpu\",\"life\":\"%s\",\"pid\":%d,\"count\":%u,\"ok\":%s}\n", life, getpid(), count, status ? "false" : "true");
		goto out;
	}
	for (int p = 0; p < options.processes && strcmp(command, "count"); p++) {
		if (p == 0 && options.no_cuda)
			watch_answer(text, sizeof(text));
		else if (p == 0)
			answer_own(command, text, sizeof(text));
		else
			answer_other(p - 1, command, text, sizeof(text));
		if (!strncmp(text, "ok ", 3))
			append(state, size, "%s%s", *state ? "," : "", text + 3);
		else if (!*error)
			snprintf(error, sizeof(error), "%s", text + 6);
	}
	dprintf(fd, "{\"kind\":\"gpu\",\"life\":\"%s\",\"pid\":%d,\"count\":%u,\"ok\":%s,\"error\":\"%s\",\"state\":{\"processes\":[%s]}}\n",
		life, getpid(), count, *error ? "false" : "true", error, state);
out:
	free(state);
	close(fd);
	return NULL;
}

static void *serve(void *listening)
{
	int s = (intptr_t)listening;
	pthread_t thread;

	for (;;) {
		int fd = accept4(s, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && errno != EINTR && errno != ECONNABORTED)
			die("accept", errno);
		if (fd >= 0 && !pthread_create(&thread, NULL, reply, (void *)(intptr_t)fd))
			pthread_detach(thread);
	}
	return NULL;
}

static int listening(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", options.socket);
	unlink(options.socket);
	if (s < 0 || bind(s, (struct sockaddr *)&address, sizeof(address)) || chmod(options.socket, 0666) || listen(s, 16))
		die("listen", errno);
	return s;
}

// child is a process other than the first: it answers until the first is gone.
static void child(int fd)
{
	FILE *in = fdopen(fd, "r");
	char command[256], text[1024];
	pthread_t ticker;

	if (options.watch && number == options.processes - 1) { // as nvidia-smi, by NVML
		if (open("/dev/nvidia-modeset", O_RDWR | O_CLOEXEC) < 0)
			die("open /dev/nvidia-modeset", errno);
		dprintf(fd, "ready\n");
		while (fgets(command, sizeof(command), in))
			dprintf(fd, "ok {\"pid\":%d,\"devices\":[],\"limits\":[]}\n", getpid());
		_exit(0);
	}
	if (options.nvml && number == options.processes - 1) {
		watch_start();
		dprintf(fd, "ready\n");
		while (fgets(command, sizeof(command), in)) {
			watch_answer(text, sizeof(text));
			dprintf(fd, "%s\n", text);
		}
		_exit(0);
	}
	devices_start();
	if (pthread_create(&ticker, NULL, tick, NULL))
		die("pthread_create", 0);
	dprintf(fd, "ready\n");
	while (fgets(command, sizeof(command), in)) {
		command[strcspn(command, "\n")] = 0;
		answer_own(command, text, sizeof(text));
		dprintf(fd, "%s\n", text);
	}
	_exit(0);
}

// start_others forks before any of them uses the driver, as one has to.
static void start_others(void)
{
	char line[64];

	for (int n = 0; n < options.processes - 1; n++) {
		int pair[2];

		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
			die("socketpair", errno);
		fflush(NULL);
		switch (fork()) {
		case -1:
			die("fork", errno);
		case 0:
			for (int i = 0; i < n; i++)
				close(fileno(others[i].in));
			close(pair[0]);
			number = n + 1;
			child(pair[1]);
		}
		close(pair[1]);
		others[n].in = fdopen(pair[0], "r");
		others[n].out = fdopen(pair[0], "w");
		pthread_mutex_init(&others[n].asked, NULL);
		if (!fgets(line, sizeof(line), others[n].in))
			die("a process has not started", n + 1);
	}
}

// each_does has each process do something, one after the other.
static void each_does(const char *step)
{
	char text[1024];

	for (int p = 0; p < options.processes; p++) {
		if (p)
			answer_other(p - 1, step, text, sizeof(text));
		else
			answer_own(step, text, sizeof(text));
		if (strncmp(text, "ok ", 3))
			die(text, p);
	}
}

// exchange has each process share memory with all others.
static void exchange(void)
{
	if (options.share) {
		each_does("offer");
		each_does("accept");
	}
	if (options.multicast) {
		each_does("make");
		each_does("join");
		each_does("bind");
	}
	each_does("change 1");
}

static void ended(int signal)
{
	(void)signal;
	_exit(0);
}

static void parse(int argc, char **argv)
{
	static const struct option known[] = {
		{"processes", 1, NULL, 'n'}, {"watch", 0, NULL, 'w'}, {"nvml", 1, NULL, 'N'}, {"watchers", 1, NULL, 't'}, {"watching-children", 1, NULL, 'c'}, {"no-cuda", 0, NULL, 'x'}, {"apart", 0, NULL, 'A'}, {"mib", 1, NULL, 'm'}, {"kernel", 1, NULL, 'k'}, {"managed", 0, NULL, 'M'},
		{"peer", 0, NULL, 'P'}, {"share", 1, NULL, 'H'}, {"share-host", 1, NULL, 'O'}, {"multicast", 1, NULL, 'T'}, {"fabric", 0, NULL, 'F'}, {"casts", 0, NULL, 'G'}, {"blocks", 1, NULL, 'B'}, {"kinds", 1, NULL, 'K'}, {"storm", 1, NULL, 'S'}, {"captures", 1, NULL, 'C'}, {"poll", 0, NULL, 'p'}, {"reduce", 1, NULL, 'r'}, {"churn", 1, NULL, 'u'}, {"alternate", 1, NULL, 'a'}, {"preferred", 0, NULL, 'y'}, {"pool", 0, NULL, 'L'}, {"bind", 1, NULL, 'b'}, {"quiet", 0, NULL, 'q'}, {"socket", 1, NULL, 's'}, {"help", 0, NULL, 'h'}, {0},
	};

	char *list;

	for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (o) {
		case 'n': options.processes = atoi(optarg); break;
		case 'w': options.watch = 1; break;
		case 'N': options.nvml = optarg; break;
		case 't': options.watchers = atoi(optarg); break;
		case 'c': options.watching_children = atoi(optarg); break;
		case 'x': options.no_cuda = 1; break;
		case 'A': options.apart = 1; break;
		case 'm': options.blocks = 1; options.block[0] = options.mib = atoi(optarg); break;
		case 'B':
			options.blocks = options.mib = 0;
			for (list = strtok(optarg, ","); list && options.blocks < MAX_BLOCKS; list = strtok(NULL, ","))
				options.mib += options.block[options.blocks++] = atoi(list);
			break;
		case 'K':
			list = strtok(optarg, ",");
			for (int b = 0; list && b < MAX_BLOCKS; b++, list = strtok(NULL, ","))
				if ((options.kind[b] = mapped_kind(list)) < 0)
					die(list, EINVAL);
			break;
		case 'S': options.storm = atoi(optarg); break;
		case 'C': options.captures = atoi(optarg); break;
		case 'p': options.poll = 1; break;
		case 'r': options.reduce = strtoul(optarg, NULL, 10); break;
		case 'u': options.churn = atoi(optarg); break;
		case 'a': options.alternate = atoi(optarg); break;
		case 'y': options.preferred = 1; break;
		case 'L': options.pool = 1; break;
		case 'b': options.bind = optarg; break;
		case 'k': options.kernel_ms = atoi(optarg); break;
		case 'M': options.managed = 1; break;
		case 'P': options.peer = 1; break;
		case 'O':
			options.share_host = 1; // fall through
		case 'H': options.share = atoi(optarg); break;
		case 'T': options.multicast = atoi(optarg); break;
		case 'F': options.fabric = 1; break;
		case 'G': options.casts = 1; break;
		case 'q': options.quiet = 1; break;
		case 's': options.socket = optarg; break;
		case 'h': fputs(usage, stdout); exit(0);
		default: fputs(usage, stderr); exit(2);
		}
	}
	if (options.processes < 1 || options.processes > MAX_PROCESSES || options.mib < 1)
		die("--processes or --mib", EINVAL);
}

int main(int argc, char **argv)
{
	struct timespec pause = {0, 100000000};
	unsigned char random[16];
	pthread_t thread;
	int s;

	parse(argc, argv);
	signal(SIGTERM, ended); // the first process of a container has no default for it
	signal(SIGPIPE, SIG_IGN);
	if (getrandom(random, sizeof(random), 0) != sizeof(random))
		die("getrandom", errno);
	for (size_t i = 0; i < sizeof(random); i++)
		sprintf(life + 2 * i, "%02x", random[i]);
	if (options.share)
		exchange_begin();
	if (options.multicast)
		team_begin();
	if (options.reduce)
		reduce_begin();
	if (options.casts)
		casts_begin();
	start_others();
	if (!options.no_cuda)
		devices_start();
	if (options.share || options.multicast)
		exchange();
	if (options.nvml && options.processes == 1)
		watch_start();
	s = listening();
	if ((!options.no_cuda && pthread_create(&thread, NULL, tick, NULL)) || pthread_create(&thread, NULL, serve, (void *)(intptr_t)s))
		die("pthread_create", 0);
	for (;; nanosleep(&pause, NULL)) {
		count++;
		if (!options.quiet && printf("count %u\n", count) > 0)
			fflush(stdout);
	}
}
