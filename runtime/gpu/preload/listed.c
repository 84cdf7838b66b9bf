#define _GNU_SOURCE
#include "listed.h"
#include "hand.h"
#include "managed.h"
#include "range.h"
#include "virtual.h"

static struct range **listed; // in ascending order of addresses
static size_t listed_count;

size_t listed_pieces(void)
{
	size_t n = 0;

	for (size_t i = 0; i < listed_count; i++)
		n += listed[i]->count;
	return n;
}

// sort is Shell's, 1959. The C library's may use malloc, which the program may have replaced.
static void sort(struct range **all, size_t count)
{
	for (size_t gap = count / 2; gap; gap /= 2)
		for (size_t i = gap; i < count; i++) {
			struct range *r = all[i];
			size_t at = i;

			for (; at >= gap && all[at - gap]->address > r->address; at -= gap)
				all[at] = all[at - gap];
			all[at] = r;
		}
}

static int append(struct range *r, void *with)
{
	size_t *n = with;

	listed[(*n)++] = r;
	return 0;
}

CUresult listed_make(size_t files)
{
	size_t pieces = table_pieces() + managed_pieces() + FILES, ranges = virtual_choose(files > pieces ? files - pieces : 0) + managed_pieces(), n = 0;
	struct memory *m;

	if (listed)
		room_free(listed, (listed_count + 1) * sizeof(*listed));
	listed_count = 0;
	for (size_t i = 0; table_at(i); i++)
		ranges++;
	listed = room((ranges + 1) * sizeof(*listed));
	if (!listed)
		return CUDA_ERROR_OPERATING_SYSTEM;
	for (; table_at(n); n++)
		listed[n] = table_at(n);
	for (size_t i = 0; (m = virtual_at(i)); i++)
		if (m->chosen)
			listed[n++] = &m->range;
	managed_each(append, &n);
	sort(listed, n);
	listed_count = n;
	return CUDA_SUCCESS;
}

int cursor_next(struct cursor *c)
{
	if (c->piece) {
		c->address += c->piece->bytes;
		c->number++;
		c->number_in_range++;
	}
	if (c->range && c->number_in_range == c->range->count) {
		c->range = NULL;
		c->number_in_range = 0;
		c->place++;
	}
	if (!c->range) {
		if (c->place >= listed_count)
			return 0;
		c->range = listed[c->place];
		c->address = c->range->address;
	}
	c->piece = &c->range->pieces[c->number_in_range];
	return 1;
}
