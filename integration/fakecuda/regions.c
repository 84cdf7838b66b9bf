// Host memory whose threads write to it all the time, and know what must be in it.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / sizeof(uint64_t))
#define THREADS 4
#define HUGE_PAGE ((size_t)2 << 20)

// A region's pages are zero but for one word of some. Each page has one writer.
struct region {
	char kind[16];
	char *memory;
	size_t pages;
	uint64_t *words; // what is in that word of each page
	pthread_mutex_t writing[THREADS];
	uint64_t rounds;
};
static struct region *all[16];
static unsigned count;

static uint64_t *place(struct region *r, size_t page) { return (uint64_t *)(r->memory + page * PAGE) + page * 37 % WORDS; }

struct writer { struct region *region; unsigned number; };

// write_all goes over a writer's pages by chance, as long as the process lives. Most of what it writes is zeros, so that there are runs of them.
static void *write_all(void *with)
{
	struct writer *w = with;
	struct region *r = w->region;
	uint64_t seed = w->number + 1;

	for (;; r->rounds++) {
		pthread_mutex_lock(&r->writing[w->number]);
		for (int i = 0; i < 64; i++) {
			size_t page;

			seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
			page = (seed >> 33) % (r->pages / THREADS) * THREADS + w->number;
			if (*place(r, page) != r->words[page])
				die("what a thread wrote is lost", page);
			*place(r, page) = r->words[page] = seed >> 40 & 63 ? 0 : seed;
		}
		pthread_mutex_unlock(&r->writing[w->number]);
	}
	return NULL;
}

static uint64_t churned(size_t page, uint64_t round) { return page % 64 == round % 64 ? round + 1 : 0; }

// churn_all has memory come and go at the same address, with something else in it each time.
static void *churn_all(void *with)
{
	struct region *r = with;
	size_t bytes = r->pages * PAGE;

	for (;; r->rounds++) {
		if (r->rounds % 2)
			madvise(r->memory, bytes, MADV_DONTNEED);
		else if (munmap(r->memory, bytes) == 0)
			while (mmap(r->memory, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
				; // somebody else has a part of it for a moment
		for (size_t page = 0; page < r->pages; page++)
			*place(r, page) = churned(page, r->rounds);
		for (size_t page = 0; page < r->pages; page++)
			if (*place(r, page) != churned(page, r->rounds))
				die("what was written to new memory is lost", page);
	}
	return NULL;
}

// read_all reads a file past the page cache, by which the disk writes to pages that no thread touches.
static void *read_all(void *with)
{
	struct region *r = with;
	int fd = open("direct", O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	size_t bytes = r->pages * PAGE;

	memset(r->memory, 0xa5, bytes);
	if (fd < 0 || pwrite(fd, r->memory, bytes, 0) != (ssize_t)bytes)
		die("a file past the page cache", errno);
	for (;; r->rounds++) {
		memset(r->memory, 0, bytes);
		if (pread(fd, r->memory, bytes, 0) != (ssize_t)bytes)
			die("read past the page cache", errno);
		for (size_t i = 0; i < bytes; i++)
			if (r->memory[i] != (char)0xa5)
				die("what the disk wrote is lost", i / PAGE);
	}
	return NULL;
}

static int begin(void *(*f)(void *), void *with)
{
	pthread_t thread;
	int r = pthread_create(&thread, NULL, f, with);

	return r ? r : pthread_detach(thread);
}

int regions_start(const char *kind, size_t mib)
{
	struct region *r = calloc(1, sizeof(*r));
	size_t bytes = mib << 20;
	char *memory = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!r || memory == MAP_FAILED || count == sizeof(all) / sizeof(*all))
		return ENOMEM;
	snprintf(r->kind, sizeof(r->kind), "%s", kind);
	r->memory = (char *)(((uintptr_t)memory + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	r->pages = bytes / PAGE;
	r->words = calloc(r->pages, sizeof(*r->words));
	if (!r->words || madvise(r->memory, bytes, strncmp(kind, "huge", 4) ? MADV_NOHUGEPAGE : MADV_HUGEPAGE))
		return ENOMEM;
	if (!strcmp(kind, "locked") && mlock(r->memory + bytes / 4, bytes / 2))
		return errno;
	memset(r->memory, 0, bytes);
	for (int i = 0; i < THREADS; i++)
		pthread_mutex_init(&r->writing[i], NULL);
	all[count++] = r;
	if (!strcmp(kind, "churned"))
		return begin(churn_all, r);
	if (!strcmp(kind, "direct"))
		return begin(read_all, r);
	for (int i = 0; i < THREADS && !strstr(kind, "still"); i++) {
		struct writer *w = malloc(sizeof(*w));

		if (!w)
			return ENOMEM;
		*w = (struct writer){r, i};
		if (begin(write_all, w))
			return EAGAIN;
	}
	return 0;
}

int regions_check(void)
{
	for (unsigned i = 0; i < count; i++) {
		struct region *r = all[i];
		int wrong = 0;

		if (!strcmp(r->kind, "churned") || !strcmp(r->kind, "direct")) // they look themselves
			continue;
		for (int w = 0; w < THREADS; w++)
			pthread_mutex_lock(&r->writing[w]);
		for (size_t page = 0; page < r->pages; page++) {
			uint64_t others = 0;

			for (size_t word = 0; word < WORDS; word++)
				others |= (uint64_t *)(r->memory + page * PAGE) + word == place(r, page) ? 0 : ((uint64_t *)(r->memory + page * PAGE))[word];
			wrong |= others || *place(r, page) != r->words[page];
		}
		for (int w = 0; w < THREADS; w++)
			pthread_mutex_unlock(&r->writing[w]);
		if (wrong)
			return -3;
	}
	return 0;
}

int regions_text(char *text, size_t size)
{
	int used = 0;

	for (unsigned i = 0; i < count; i++)
		used += snprintf(text + used, size - used, "%s{\"kind\":\"%s\",\"first\":%llu,\"bytes\":%zu,\"rounds\":%llu}", i ? "," : "", all[i]->kind,
			(unsigned long long)(uintptr_t)all[i]->memory, all[i]->pages * PAGE, (unsigned long long)all[i]->rounds);
	return used;
}
