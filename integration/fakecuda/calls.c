// How fakeapp gets at the driver's functions: in the ways that programs do.
#define _GNU_SOURCE
#include "fakeapp.h"

#include <dlfcn.h>
#include <string.h>

struct calls cuda;

// plain is a name without its version, as cuGetProcAddress wants it.
static const char *plain(const char *name)
{
	static char text[64];
	char *version;

	strncpy(text, name, sizeof(text) - 1);
	version = strstr(text, "_v2");
	if (version)
		*version = 0;
	return text;
}

static void *by_dlsym(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void *function = library ? dlsym(library, name) : NULL;

	if (!function || dlsym(library, "cuNoSuchFunction"))
		die(name, 0);
	return function;
}

static void *by_driver(const char *name)
{
	__typeof__(cuGetProcAddress_v2) *get = by_dlsym("cuGetProcAddress_v2");
	void *function;
	int status;

	must("cuGetProcAddress", get("cuGetProcAddress", &function, 12000, 0, &status)); // as the CUDA runtime does
	get = function;
	must(name, get(plain(name), &function, !strncmp(name, "cuMulticast", 11) && strstr(name, "_v2") ? 13010 : 12000, 0, &status));
	return function;
}

void calls_bind(const char *how)
{
	void *(*bind)(const char *) = !strcmp(how, "proc") ? by_driver : by_dlsym;

	if (!strcmp(how, "direct")) {
#define DIRECT(name) cuda.name = name;
		CALLS(DIRECT)
	} else {
#define BIND(name) cuda.name = bind(#name);
		CALLS(BIND)
	}
}
