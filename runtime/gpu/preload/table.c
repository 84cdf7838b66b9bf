#define _GNU_SOURCE
#include "table.h"
#include "shared.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static size_t count, most, put_off;

void table_lock(void) { pthread_mutex_lock(&lock); }
void table_unlock(void) { pthread_mutex_unlock(&lock); }

void *room(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void room_free(void *memory, size_t bytes) { munmap(memory, bytes); }

struct range *table_at(size_t place) { return place < count ? &ranges[place] : NULL; }

size_t table_pieces(void)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += ranges[i].count;
	return n;
}

size_t table_foreign(void)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		for (unsigned p = 0; p < ranges[i].count; p++)
			n += ranges[i].pieces[p].handle && !ranges[i].pieces[p].own;
	return n;
}

// after is the place of the first range that begins after an address.
static size_t after(CUdeviceptr address)
{
	size_t low = 0, high = count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (ranges[middle].address <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct range *table_in(CUdeviceptr pointer)
{
	size_t place = after(pointer);
	struct range *r = place > 0 ? &ranges[place - 1] : NULL;

	return r && pointer - r->address < r->asked && !r->put_off ? r : NULL;
}

static int grow(void)
{
	size_t more = most ? 2 * most : 256;
	struct range *r = room(more * sizeof(*r));

	if (!r)
		return 0;
	if (ranges) {
		memcpy(r, ranges, count * sizeof(*r));
		room_free(ranges, most * sizeof(*r));
	}
	ranges = r;
	most = more;
	return 1;
}

int table_add(const struct range *r)
{
	size_t place;
	int ok;

	table_lock();
	ok = count < most || grow();
	if (ok) {
		place = after(r->address);
		memmove(&ranges[place + 1], &ranges[place], (count - place) * sizeof(*r));
		ranges[place] = *r;
		count++;
	}
	table_unlock();
	return ok;
}

int table_find(CUdeviceptr pointer, struct range *r)
{
	size_t place;
	int found;

	table_lock();
	place = after(pointer);
	found = place > 0 && pointer - ranges[place - 1].address < ranges[place - 1].bytes && !ranges[place - 1].put_off;
	if (found)
		*r = ranges[place - 1];
	table_unlock();
	return found;
}

int table_covers(CUdeviceptr pointer, size_t bytes)
{
	size_t place;
	int found;

	table_lock();
	place = after(pointer);
	found = (place > 0 && pointer - ranges[place - 1].address < ranges[place - 1].bytes) ||
		(place < count && ranges[place].address - pointer < bytes);
	table_unlock();
	return found;
}

static void take(size_t place, struct range *r)
{
	*r = ranges[place];
	put_off -= r->put_off;
	count--;
	memmove(&ranges[place], &ranges[place + 1], (count - place) * sizeof(*r));
}

int table_take(CUdeviceptr address, struct range *r)
{
	size_t place;
	int found;

	table_lock();
	place = after(address);
	found = place > 0 && ranges[place - 1].address == address && !ranges[place - 1].put_off;
	if (found)
		take(place - 1, r);
	table_unlock();
	return found;
}

int table_put_off(CUdeviceptr address)
{
	size_t place;
	int found;

	table_lock();
	place = after(address);
	found = place > 0 && ranges[place - 1].address == address && !ranges[place - 1].put_off;
	if (found) {
		ranges[place - 1].put_off = 1;
		put_off++;
	}
	table_unlock();
	return found;
}

int table_take_put_off(struct range *r)
{
	int found = 0;

	if (!__atomic_load_n(&put_off, __ATOMIC_RELAXED))
		return 0;
	table_lock();
	for (size_t i = 0; i < count && !found; i++)
		if (ranges[i].put_off) {
			take(i, r);
			found = 1;
		}
	table_unlock();
	return found;
}

int table_take_of(CUcontext context, struct range *r)
{
	int found = 0;

	table_lock();
	for (size_t i = 0; i < count && !found; i++)
		if (ranges[i].context == context) {
			take(i, r);
			found = 1;
		}
	table_unlock();
	return found;
}

void table_forked(void)
{
	pthread_mutex_init(&lock, NULL);
	for (size_t i = 0; i < count; i++)
		for (unsigned p = 0; p < ranges[i].count; p++) {
			if (ranges[i].pieces[p].fd >= 0)
				close(ranges[i].pieces[p].fd);
			shared_forget(&ranges[i].pieces[p]);
		}
	count = put_off = 0;
}
