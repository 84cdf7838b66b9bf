#define _GNU_SOURCE
#include "orders.h"
#include "control.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

// meant is true where a process that makes a call for a device is one of which.
static int meant(const char *which, int pid, const CUuuid *device)
{
	const char *at = strchr(which, '@');
	char text[UUID_TEXT];

	if (at && device)
		uuid_text(device, text);
	if (at && (!device || strcmp(at + 1, text)))
		return 0;
	return *which == '*' || atoi(which) == process_number(pid);
}

// carry_out is true where the line is an order for this call, which is then in o. Waiting needs no more than this.
static int carry_out(const char *line, const char *call, int pid, const CUuuid *device, struct order *o, unsigned *delay, char action[16])
{
	char name[48], which[64];
	int argument = 0;

	if (sscanf(line, "%47s %63s %15s %d", name, which, action, &argument) < 3 || strcmp(name, call) || !meant(which, pid, device))
		return 0;
	if (!strcmp(action, "error"))
		o->error = argument;
	else if (!strcmp(action, "delay"))
		*delay = argument;
	else if (!strcmp(action, "slow"))
		o->slow_ms = argument;
	else if (!strcmp(action, "exit-after"))
		o->exit_after = 1;
	else if (!strcmp(action, "crash"))
		o->crash = 1, o->error = argument;
	else
		return !strcmp(action, "exit") || !strcmp(action, "hang") || !strcmp(action, "pass");
	return 1;
}

// next reads the first order for the call and marks it as used. The file is locked, as calls are made side by side.
static int next(const char *call, int pid, const CUuuid *device, struct order *o, unsigned *delay, char action[16])
{
	const char *path = getenv("FAKECUDA_ORDERS");
	FILE *f = path ? fopen(path, "r+e") : NULL;
	char line[128];
	int found = 0;

	if (!f)
		return 0;
	flock(fileno(f), LOCK_EX);
	for (long start = 0; !found && fgets(line, sizeof(line), f); start = ftell(f)) {
		found = carry_out(line, call, pid, device, o, delay, action);
		if (found && !strstr(line, "always"))
			pwrite(fileno(f), "#", 1, start);
	}
	fclose(f);
	return found;
}

static struct order take(const char *call, int pid, const CUuuid *device)
{
	struct order o = {0};
	char action[16];

	for (unsigned delay = 0; next(call, pid, device, &o, &delay, action); delay = 0) {
		if (!strcmp(action, "exit"))
			kill(getpid(), SIGKILL);
		while (!strcmp(action, "hang"))
			pause();
		if (strcmp(action, "delay"))
			break;
		sleep_ms(delay);
	}
	return o;
}

struct order orders_take(const char *call, int pid) { return take(call, pid, NULL); }

CUresult orders_done(const struct order *o, const char *call, int pid, CUresult result)
{
	const char *path = getenv("FAKECUDA_LOG");
	int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644) : -1;

	if (fd >= 0) {
		dprintf(fd, "%s %d %d\n", call, pid, result);
		close(fd);
	}
	if (o->crash)
		kill(pid, SIGKILL);
	if (o->exit_after)
		kill(getpid(), SIGKILL);
	return result;
}

CUresult orders_init(void)
{
	struct order o = orders_take("init", getpid());

	return orders_done(&o, "init", getpid(), o.error);
}

int orders_given(void) { return getenv("FAKECUDA_ORDERS") != NULL; }

CUresult orders_own(const char *call) { return orders_on(call, NULL); }

CUresult orders_on(const char *call, const CUuuid *device)
{
	struct order o;

	if (!orders_given())
		return CUDA_SUCCESS;
	o = take(call, getpid(), device);
	sleep_ms(o.slow_ms);
	return o.error;
}
