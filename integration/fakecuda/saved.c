// What a checkpoint, a restore and fork make of memory with handles.
#define _GNU_SOURCE
#include "handles.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

size_t virtual_bytes(void)
{
	size_t bytes = 0;

	for (struct handle *h = handles; h < handles + MOST; h++)
		bytes += h->bytes;
	return bytes;
}

CUresult virtual_save(void)
{
	for (struct handle *h = handles; h < handles + MOST; h++) {
		if (!h->bytes)
			continue;
		h->saved = mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (h->saved == MAP_FAILED || pread(h->fd, h->saved, h->bytes, 0) != (ssize_t)h->bytes)
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (struct mapping *m = mappings; m < mappings + MOST; m++)
		if (m->address)
			place_drop(m);
	for (struct handle *h = handles; h < handles + MOST; h++) {
		if (!h->bytes)
			continue;
		directory_let_go(&devices[h->device], h->fd);
		h->fd = -1;
	}
	return CUDA_SUCCESS;
}

CUresult virtual_make(const struct device moved[MAX_DEVICES])
{
	for (struct handle *h = handles; h < handles + MOST; h++) {
		CUresult r;

		if (!h->bytes)
			continue;
		r = directory_create(&moved[h->device], h->bytes, h->made_name, &h->made);
		if (r != CUDA_SUCCESS) {
			while (h-- > handles)
				if (h->bytes)
					directory_remove(&moved[h->device], h->made_name, h->made);
			return r;
		}
	}
	return CUDA_SUCCESS;
}

void virtual_drop(const struct device moved[MAX_DEVICES])
{
	for (struct handle *h = handles; h < handles + MOST; h++)
		if (h->bytes)
			directory_remove(&moved[h->device], h->made_name, h->made);
}

CUresult virtual_load(void)
{
	for (struct handle *h = handles; h < handles + MOST; h++) {
		if (!h->bytes)
			continue;
		h->fd = h->made;
		if (pwrite(h->fd, h->saved, h->bytes, 0) != (ssize_t)h->bytes)
			return CUDA_ERROR_OPERATING_SYSTEM;
		munmap(h->saved, h->bytes);
		h->saved = NULL;
	}
	for (struct mapping *m = mappings; m < mappings + MOST; m++)
		if (m->address && place_make(m) != CUDA_SUCCESS)
			return CUDA_ERROR_OPERATING_SYSTEM;
	return CUDA_SUCCESS;
}

void virtual_forget(void)
{
	for (struct mapping *m = mappings; m < mappings + MOST; m++)
		place_drop(m);
	for (struct handle *h = handles; h < handles + MOST; h++)
		if (h->bytes && h->fd >= 0)
			close(h->fd);
	memset(handles, 0, sizeof(handles));
	memset(mappings, 0, sizeof(mappings));
	memset(reservations, 0, sizeof(reservations));
}

void nvml_saved(int saved)
{
	void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_NOLOAD);
	void (*function)(void) = library ? (void (*)(void))dlsym(library, saved ? "fakenvml_save" : "fakenvml_load") : NULL;

	if (function)
		function();
	if (library)
		dlclose(library);
}
