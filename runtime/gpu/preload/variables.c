// Managed variables of modules and libraries (__managed__): the library makes their memory, and code refers to that. The CUDA runtime loads code by cuLibraryLoadData, and asks for each variable by cuLibraryGetManaged.
#define _GNU_SOURCE
#include "hooks.h"
#include "image.h"
#include "managed.h"
#include "thread.h"

#include <pthread.h>
#include <string.h>

// loaded is code with managed variables that the driver has loaded under a handle.
struct loaded {
	struct loaded *next;
	void *handle;
	CUdeviceptr address; // of all of its variables
	struct image image;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct loaded *all;

static void discard(struct loaded *l)
{
	CUresult unused;

	if (l->address)
		managed_free(l->address, &unused);
	image_free(&l->image);
	room_free(l, sizeof(*l));
}

// begin writes the first value of a variable.
static CUresult begin(const struct variable *v)
{
	CUresult r = CUDA_SUCCESS;
	struct span *s;

	managed_lock();
	s = managed_span(v->address);
	for (size_t chunk = (v->address - s->address) / CHUNK_BYTES; r == CUDA_SUCCESS && s->address + chunk * CHUNK_BYTES < v->address + v->bytes; chunk++)
		r = managed_to_host(s, chunk, 1);
	if (r == CUDA_SUCCESS)
		memcpy((void *)v->address, v->initial, v->bytes);
	managed_unlock();
	return r;
}

// jit are the options of a call that loads code.
struct jit { unsigned count; int *options; void **values; };

// managed returns whether the library looks after the variables of some code. Nearly all code has none.
static int managed(const void *code) { return code && thread_runs() && image_managed(code); }

// prepare copies code, compiled where jit is not NULL, and makes the copy's managed variables the library's. It returns NULL if there are none, or if it cannot: then they are the driver's.
static struct loaded *prepare(const void *code, const struct jit *jit)
{
	struct image image;
	struct loaded *l;
	CUresult r;

	if (!(jit ? image_compile(&image, code, jit->count, jit->options, jit->values) : image_ready(code) && image_read(&image, code)))
		return NULL;
	l = room(sizeof(*l));
	if (!l) {
		image_free(&image);
		return NULL;
	}
	l->image = image;
	r = managed_alloc_lasting(&l->address, image_bytes(&image));
	if (r == CUDA_SUCCESS && !image_place(&l->image, l->address))
		r = CUDA_ERROR_NOT_SUPPORTED;
	for (size_t n = 0; r == CUDA_SUCCESS && n < l->image.count; n++)
		if (l->image.variables[n].initial)
			r = begin(&l->image.variables[n]);
	if (r == CUDA_SUCCESS)
		return l;
	discard(l);
	return NULL;
}

// take takes out what was loaded under a handle; NULL: nothing with managed variables.
static struct loaded *take(const void *handle)
{
	struct loaded **at = &all, *l;

	pthread_mutex_lock(&lock);
	while (*at && (*at)->handle != handle)
		at = &(*at)->next;
	l = *at;
	if (l)
		*at = l->next;
	pthread_mutex_unlock(&lock);
	return l;
}

// forget is for a handle that is no more of what it was: it was unloaded, or its context has ended.
static void forget(const void *handle)
{
	struct loaded *l = take(handle);

	if (l)
		discard(l);
}

static void note(struct loaded *l, void *handle)
{
	l->handle = handle;
	pthread_mutex_lock(&lock);
	l->next = all;
	all = l;
	pthread_mutex_unlock(&lock);
}

static int find(const void *handle, const char *name, CUdeviceptr *pointer, size_t *bytes)
{
	int found = 0;

	pthread_mutex_lock(&lock);
	for (const struct loaded *l = all; name && l; l = l->next)
		for (size_t n = 0; l->handle == handle && n < l->image.count; n++) {
			const struct variable *v = &l->image.variables[n];

			if (strcmp(v->name, name))
				continue;
			if (pointer)
				*pointer = v->address;
			if (bytes)
				*bytes = v->bytes;
			found = 1;
		}
	pthread_mutex_unlock(&lock);
	return found;
}

// The driver has the last word: what it does not load with the library's variables, it loads as the program has it. What has no cubin for the devices is compiled.
#define LOAD(name, arguments, call, ...) \
	CUresult hook_##name arguments \
	{ \
		const struct jit jit = {__VA_ARGS__}; \
		const void *own = code; \
		CUresult r; \
 \
		for (int compiled = 0, ways = managed(own) ? 2 : 0; compiled < ways; compiled++) { \
			struct loaded *l = prepare(own, compiled ? &jit : NULL); \
 \
			if (!l) \
				continue; \
			code = l->image.code; \
			r = driver.name call; \
			if (r == CUDA_SUCCESS) { \
				forget(*handle); \
				note(l, *handle); \
				return r; \
			} \
			discard(l); \
		} \
		code = own; \
		r = driver.name call; \
		if (r == CUDA_SUCCESS) \
			forget(*handle); \
		return r; \
	}
LOAD(cuModuleLoadData, (void **handle, const void *code), (handle, code), 0, NULL, NULL)
LOAD(cuModuleLoadDataEx, (void **handle, const void *code, unsigned count, int *options, void **values), (handle, code, count, options, values), count, options, values)
LOAD(cuModuleLoadFatBinary, (void **handle, const void *code), (handle, code), 0, NULL, NULL)
LOAD(cuLibraryLoadData, (void **handle, const void *code, int *options, void **values, unsigned count, int *of_library, void **of_library_values, unsigned of_library_count),
	(handle, code, options, values, count, of_library, of_library_values, of_library_count), count, options, values)

#define UNLOAD(name) \
	CUresult hook_##name(void *handle) \
	{ \
		CUresult r = driver.name(handle); \
 \
		if (r == CUDA_SUCCESS) \
			forget(handle); \
		return r; \
	}
UNLOAD(cuModuleUnload)
UNLOAD(cuLibraryUnload)

#define FIND(name) \
	CUresult hook_##name(CUdeviceptr *pointer, size_t *bytes, void *handle, const char *called) { return find(handle, called, pointer, bytes) ? CUDA_SUCCESS : driver.name(pointer, bytes, handle, called); }
FIND(cuModuleGetGlobal_v2)
FIND(cuLibraryGetGlobal)
FIND(cuLibraryGetManaged)
