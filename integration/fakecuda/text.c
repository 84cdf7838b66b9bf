#include "control.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

void sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};

	// A sleep of no time takes as long as the kernel's timers are coarse, and every call of the driver comes by here.
	while (ms && nanosleep(&t, &t))
		;
}

// hyphens are where a UUID has them, counted in bytes.
static int hyphen_before(int byte)
{
	return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void uuid_text(const CUuuid *uuid, char text[UUID_TEXT])
{
	text += sprintf(text, "GPU-");
	for (int i = 0; i < 16; i++)
		text += sprintf(text, hyphen_before(i) ? "-%02x" : "%02x", (unsigned char)uuid->bytes[i]);
}

int uuid_parse(const char *text, CUuuid *uuid)
{
	if (strlen(text) != UUID_TEXT - 1 || strncmp(text, "GPU-", 4))
		return 0;
	text += 4;
	for (int i = 0; i < 16; i++) {
		unsigned value;

		if (hyphen_before(i) && *text++ != '-')
			return 0;
		if (!isxdigit((unsigned char)text[0]) || !isxdigit((unsigned char)text[1]) || sscanf(text, "%2x", &value) != 1)
			return 0;
		uuid->bytes[i] = value;
		text += 2;
	}
	return 1;
}

static const struct { CUresult code; const char *name; } names[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
	{CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
	{CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
	{CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY"},
	{CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
	{CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
	{CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN"},
};

CUresult cuGetErrorName(CUresult code, const char **name)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].code == code) {
			*name = names[i].name;
			return CUDA_SUCCESS;
		}
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}
