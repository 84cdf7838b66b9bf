#define _GNU_SOURCE
#include "precopy.h"
#include "gate.h"
#include "hand.h"
#include "virtual.h"

#include <time.h>

// PATIENCE is how long memory that the host has is not freed, ms. The host has it for some hundredths of a second, unless its disk stands still.
#define PATIENCE 2000

static CUmemGenericAllocationHandle lent; // 0: none

static struct list { struct place *places; size_t count, most; } list;

static int add(const struct range *r, void *with)
{
	struct list *l = with;
	CUdeviceptr at = r->address;

	if (r->put_off || l->count + r->count > l->most)
		return 0;
	for (unsigned i = 0; i < r->count; at += r->pieces[i].bytes, i++)
		if (r->pieces[i].own) // others cannot be exported, and come by the descriptor that they have
			l->places[l->count++] = (struct place){at, r->pieces[i].bytes, r->device};
	return 0;
}

// sort is Shell's, 1959. The C library's may use malloc, which the program may have replaced.
static void sort(struct place *all, size_t count)
{
	for (size_t gap = count / 2; gap; gap /= 2)
		for (size_t i = gap; i < count; i++) {
			struct place p = all[i];
			size_t at = i;

			for (; at >= gap && all[at - gap].address > p.address; at -= gap)
				all[at] = all[at - gap];
			all[at] = p;
		}
}

void precopy_list_end(void)
{
	if (list.places)
		room_free(list.places, list.most * sizeof(*list.places));
	list = (struct list){0};
}

size_t precopy_list(const struct place **places)
{
	size_t apart = 0;

	precopy_list_end();
	list.most = hand_pieces() + 64; // what is made meanwhile is not listed
	list.places = room(list.most * sizeof(*list.places));
	if (!list.places)
		return 0;
	table_lock();
	for (size_t i = 0; table_at(i); i++)
		add(table_at(i), &list);
	table_unlock();
	virtual_each_placed(add, &list);
	sort(list.places, list.count);
	// What was freed between the two may have left its address to another.
	for (size_t i = 0; i < list.count; i++)
		if (!apart || list.places[i].address >= list.places[apart - 1].address + list.places[apart - 1].bytes)
			list.places[apart++] = list.places[i];
	*places = list.places;
	return apart;
}

struct search { CUdeviceptr address; size_t bytes; int *fd; CUresult result; };

// lend exports the piece that is looked for, if it is the range's.
static int lend_of(const struct range *r, void *with)
{
	struct search *s = with;
	CUdeviceptr at = r->address;

	for (unsigned i = 0; i < r->count; at += r->pieces[i].bytes, i++) {
		struct piece *p = &r->pieces[i];

		if (at != s->address || p->bytes != s->bytes || !p->own || r->put_off)
			continue;
		s->result = hand_export(p, s->fd);
		if (s->result == CUDA_SUCCESS)
			__atomic_store_n(&lent, p->handle, __ATOMIC_SEQ_CST);
		return 1;
	}
	return 0;
}

CUresult precopy_lend(CUdeviceptr address, size_t bytes, int *fd)
{
	struct search s = {address, bytes, fd, CUDA_ERROR_NOT_FOUND};
	struct range *r;

	precopy_return();
	table_lock();
	r = table_in(address);
	if (r)
		lend_of(r, &s);
	table_unlock();
	if (!r)
		virtual_each_placed(lend_of, &s);
	return s.result;
}

void precopy_return(void) { __atomic_store_n(&lent, 0, __ATOMIC_SEQ_CST); }

void precopy_wait(const struct piece *pieces, unsigned count)
{
	struct timespec pause = {0, 200000};
	int64_t until = 0;

	for (unsigned i = 0; i < count; i++)
		while (pieces[i].handle && pieces[i].handle == __atomic_load_n(&lent, __ATOMIC_SEQ_CST)) {
			if (!until)
				until = now_ns() + PATIENCE * INT64_C(1000000);
			if (now_ns() > until)
				return;
			nanosleep(&pause, NULL);
		}
}
