#define _GNU_SOURCE
#include "control.h"
#include "directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *root(void)
{
	const char *dir = getenv("FAKECUDA_DIR");

	return dir ? dir : "/dev/fakegpu";
}

static void path_of(const struct device *device, const char *name, char path[PATH_MAX])
{
	char uuid[UUID_TEXT];

	uuid_text(&device->uuid, uuid);
	snprintf(path, PATH_MAX, "%s/%s/%s", root(), uuid, name);
}

// number_in is what a device's file says; -1: there is none.
static int number_in(const char *file, const struct device *device)
{
	char path[PATH_MAX];
	int number;
	FILE *f;

	path_of(device, file, path);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f, "%d", &number) != 1)
		number = -1;
	fclose(f);
	return number;
}

int directory_number(const struct device *device) { return number_in("number", device); }

// visible is false where the device has a minor number, and its node is not here.
static int visible(struct device *device)
{
	char node[32];

	device->minor = number_in("minor", device);
	snprintf(node, sizeof(node), "/dev/nvidia%d", device->minor);
	return device->minor < 0 || !access(node, F_OK);
}

int directory_total(struct device *device)
{
	char path[PATH_MAX];
	long long total;
	FILE *f;
	int ok;

	if (!visible(device))
		return 0;
	path_of(device, "total", path);
	f = fopen(path, "re");
	if (!f)
		return 0;
	ok = fscanf(f, "%lld", &total) == 1;
	fclose(f);
	if (ok)
		device->total = total;
	return ok;
}

int directory_devices(struct device *found, int most)
{
	DIR *d = opendir(root());
	struct dirent *e;
	int n = 0;

	while (d && n < most && (e = readdir(d)))
		if (uuid_parse(e->d_name, &found[n].uuid) && directory_total(&found[n]))
			n++;
	if (d)
		closedir(d);
	return n;
}

// lock keeps others from allocating on the device until its descriptor is closed.
static int lock(const struct device *device)
{
	char path[PATH_MAX];
	int fd;

	path_of(device, "total", path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

// used removes what killed processes have left, and adds up the rest. The device is locked.
static int64_t used(const struct device *device)
{
	char path[PATH_MAX];
	int64_t sum = 0;
	struct dirent *e;
	struct stat st;
	DIR *d;

	path_of(device, "", path);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		int fd;

		if (strncmp(e->d_name, "mem-", 4))
			continue;
		path_of(device, e->d_name, path);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			continue;
		if (!flock(fd, LOCK_EX | LOCK_NB))
			unlink(path);
		else if (!fstat(fd, &st))
			sum += st.st_size;
		close(fd);
	}
	if (d)
		closedir(d);
	return sum;
}

int64_t directory_used(const struct device *device)
{
	int fd = lock(device);
	int64_t sum = used(device);

	if (fd >= 0)
		close(fd);
	return sum;
}

CUresult directory_create(const struct device *device, size_t bytes, char name[MEMORY_NAME], int *fd)
{
	char path[PATH_MAX];
	CUresult r = CUDA_SUCCESS;
	int locked = lock(device);

	*fd = -1;
	if (locked < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (used(device) + (int64_t)bytes > device->total) {
		r = CUDA_ERROR_OUT_OF_MEMORY;
	} else {
		path_of(device, "mem-XXXXXX", path);
		*fd = mkostemp(path, O_CLOEXEC);
		if (*fd < 0 || flock(*fd, LOCK_SH | LOCK_NB) || posix_fallocate(*fd, 0, bytes)) {
			r = CUDA_ERROR_OPERATING_SYSTEM;
			if (*fd >= 0) {
				unlink(path);
				close(*fd);
				*fd = -1;
			}
		} else {
			snprintf(name, MEMORY_NAME, "%s", strrchr(path, '/') + 1);
		}
	}
	close(locked);
	return r;
}

void directory_remove(const struct device *device, const char *name, int fd)
{
	char path[PATH_MAX];

	path_of(device, name, path);
	unlink(path);
	close(fd);
}

int directory_open(const struct device *device, const char *name)
{
	char path[PATH_MAX];
	int fd;

	path_of(device, name, path);
	fd = strncmp(name, "mem-", 4) || strchr(name, '/') ? -1 : open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) { // no process has it
		close(fd);
		fd = -1;
	}
	return fd;
}

int directory_name(int fd, char name[MEMORY_NAME])
{
	char link[64], path[PATH_MAX];
	const char *last;
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	path[n < 0 ? 0 : n] = 0;
	last = strrchr(path, '/');
	if (!last || strncmp(last, "/mem-", 5))
		return 0;
	snprintf(name, MEMORY_NAME, "%s", last + 1);
	return 1;
}

int directory_device(const struct device *known, int count, int fd)
{
	char name[MEMORY_NAME], path[PATH_MAX];
	struct stat own, st;

	if (fstat(fd, &own) || !directory_name(fd, name))
		return -1;
	for (int i = 0; i < count; i++) {
		path_of(&known[i], name, path);
		if (!stat(path, &st) && st.st_dev == own.st_dev && st.st_ino == own.st_ino)
			return i;
	}
	return -1;
}

int directory_again(int fd)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again >= 0)
		flock(again, LOCK_SH);
	return again;
}

void directory_let_go(const struct device *device, int fd)
{
	int locked = lock(device);

	close(fd);
	if (locked >= 0) {
		used(device); // removes what nobody holds
		close(locked);
	}
}

int directory_thread(int pid)
{
	char path[64], name[32];
	struct dirent *e;
	DIR *tasks;
	int found = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && !found && (e = readdir(tasks))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%.16s/comm", pid, e->d_name);
		f = fopen(path, "re");
		if (f && fgets(name, sizeof(name), f) && !strncmp(name, RESTORE_THREAD, strlen(RESTORE_THREAD)))
			found = atoi(e->d_name);
		if (f)
			fclose(f);
	}
	if (tasks)
		closedir(tasks);
	return found;
}
