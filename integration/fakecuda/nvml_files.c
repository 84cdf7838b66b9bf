#define _GNU_SOURCE
#include "nvml_files.h"
#include "cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define NODES 2
#define BYTES (4 << 12)

// Nodes are what stands for the driver's (memory.c). A process that does not see them, as the helper, has none open.
static int nodes[NODES] = {-1, -1};
static char *mapped;
static int broken; // for ever

int files_one(void) { return open("/dev/nvidia-modeset", O_RDWR | O_CLOEXEC); }

int files_open(void)
{
	int fd;

	if (broken || !files_work())
		return 0;
	fd = open("/dev/nvidia-uvm-tools", O_RDWR | O_CLOEXEC);
	for (int i = 0; i < NODES; i++)
		nodes[i] = files_one();
	if (fd < 0)
		return 1;
	mapped = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
	if (mapped == MAP_FAILED)
		mapped = NULL;
	close(fd);
	return mapped != NULL;
}

void files_close(void)
{
	broken |= !files_work();
	if (broken)
		return;
	for (int i = 0; i < NODES; i++) {
		if (nodes[i] >= 0)
			close(nodes[i]);
		nodes[i] = -1;
	}
	if (mapped)
		munmap(mapped, BYTES);
	mapped = NULL;
}

int files_work(void)
{
	struct stat st;

	for (int i = 0; i < NODES; i++)
		if (nodes[i] >= 0 && (fstat(nodes[i], &st) || !S_ISCHR(st.st_mode)))
			return 0;
	return 1;
}

// fakenvml_save and fakenvml_load are what the driver's checkpoint and restore do with NVML.
static int saved;

FAKE void fakenvml_save(void);
FAKE void fakenvml_save(void)
{
	saved = nodes[0] >= 0;
	files_close();
}

FAKE void fakenvml_load(void);
FAKE void fakenvml_load(void)
{
	if (saved)
		files_open();
	saved = 0;
}
