// Children without CUDA of a process that has a context, as loader workers and pools are.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t sleeping[256];
static unsigned count;
static unsigned long pause_ms; // between children that end; 0: none are started

// close_sockets has a child give up connections, which may be with processes outside of the container.
static void close_sockets(void)
{
	struct stat st;

	for (int fd = 3; fd < 1024; fd++)
		if (!fstat(fd, &st) && S_ISSOCK(st.st_mode))
			close(fd);
}

int children_start(unsigned long more)
{
	pid_t parent = getpid();

	for (; more > 0; more--) {
		pid_t child = fork();

		if (child < 0)
			return errno;
		if (child == 0) {
			close_sockets();
			while (getppid() == parent)
				usleep(10000);
			_exit(0);
		}
		if (count < sizeof(sleeping) / sizeof(*sleeping))
			sleeping[count++] = child;
	}
	return 0;
}

int children_lost(void)
{
	for (unsigned i = 0; i < count; i++)
		if (waitpid(sleeping[i], NULL, WNOHANG) != 0)
			return 1;
	return 0;
}

// run starts a child by vfork, which executes another program at once. It is a function of its own because the child uses the stack of its caller: variables of churn could change.
__attribute__((noinline)) static pid_t run(void)
{
	pid_t child = vfork();

	if (child == 0) {
		if (dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), 1) == 1)
			execl("/fake/fakeapp", "fakeapp", "--help", (char *)NULL);
		_exit(0);
	}
	return child;
}

// churn starts children that end, by turns at once, after a while, by running another program, and with a child of their own.
static void *churn(void *unused)
{
	(void)unused;
	for (unsigned n = 0;; n++) {
		unsigned long ms = __atomic_load_n(&pause_ms, __ATOMIC_ACQUIRE);
		pid_t child;

		usleep(ms ? ms * 1000 : 10000);
		if (!ms)
			continue;
		child = n % 4 == 2 ? run() : fork();
		if (child == 0) {
			close_sockets();
			if (n % 4 == 1)
				usleep(30000);
			if (n % 4 == 3 && fork() == 0)
				usleep(30000);
			_exit(0);
		}
		if (child > 0)
			waitpid(child, NULL, 0);
	}
	return NULL;
}

int children_churn(unsigned long ms)
{
	static pthread_t thread;

	__atomic_store_n(&pause_ms, ms, __ATOMIC_RELEASE);
	return thread ? 0 : pthread_create(&thread, NULL, churn, NULL);
}
