#include "calls.h"

#include <string.h>

#define UNIT ((size_t)1 << 20)
#define THREADS 512

// launch begins to sum units, and has the sums come to here.
static struct outcome launch(const struct device *d, int stream, uint64_t from, unsigned units, unsigned char *here)
{
	uint64_t key = d->key;
	struct outcome o = {0, NULL};

	memset(here, 0, units * SUMS);
	CALL(o, "cuLaunchKernel", driver_calls.launch(d->sum, units, 1, 1, THREADS, 1, 1, 0, d->streams[stream], (void *[]){&from, &key, &here}, NULL));
	return o;
}

struct outcome memory_sums(const struct device *d, int stream, uint64_t from, unsigned units, unsigned char *sums)
{
	unsigned char *here = d->sums + (size_t)stream * UNITS * SUMS;
	struct outcome o = on_device(d);

	if (!o.code)
		o = launch(d, stream, from, units, here);
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[stream]));
	if (!o.code)
		memcpy(sums, here, units * SUMS);
	return o;
}

struct outcome memory_stage(const struct device *d, int stream, void *to, uint64_t from, size_t bytes, unsigned char *sums)
{
	unsigned char *here = d->sums + (size_t)stream * UNITS * SUMS;
	struct outcome o = on_device(d);

	CALL(o, "cuMemcpyDtoDAsync", driver_calls.copy_async(d->stage, from, bytes, d->streams[stream]));
	if (!o.code)
		o = launch(d, stream, d->stage, bytes / UNIT, here);
	CALL(o, "cuMemcpyDtoHAsync", driver_calls.read_async(to, d->stage, bytes, d->streams[stream]));
	CALL(o, "cuStreamSynchronize", driver_calls.stream_wait(d->streams[stream]));
	if (!o.code)
		memcpy(sums, here, bytes / UNIT * SUMS);
	return o;
}

void memory_open_sums(struct device *d, const char *ptx, const void *key)
{
	void *module, *kernel;

	if (on_device(d).code || driver_calls.module_load(&module, ptx) || driver_calls.module_function(&kernel, module, "cryo_sums") ||
	    driver_calls.host_alloc((void **)&d->sums, (size_t)STREAMS * UNITS * SUMS, PORTABLE | DEVICEMAP) || driver_calls.alloc(&d->key, KEY))
		return;
	if (!driver_calls.alloc(&d->stage, STAGE) && !driver_calls.write_async(d->key, key, KEY, d->streams[0]) && !driver_calls.stream_wait(d->streams[0]))
		d->sum = kernel;
	else
		memory_close_sums(d);
}

void memory_close_stage(struct device *d)
{
	if (d->stage && !on_device(d).code)
		driver_calls.dealloc(d->stage);
	d->stage = 0;
}

void memory_close_sums(struct device *d)
{
	memory_close_stage(d);
	if (d->key && !on_device(d).code)
		driver_calls.dealloc(d->key);
	d->key = 0;
	d->sum = NULL;
}
