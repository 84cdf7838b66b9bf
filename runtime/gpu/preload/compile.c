// Code that the driver compiles when it loads it (PTX). The library has it compiled ahead, so that it can change the managed variables in the cubin.
#define _GNU_SOURCE
#include "image.h"

#include <string.h>

int image_managed(const void *code)
{
	const void *at;
	size_t bytes;

	if (image_cubin(code) || image_fat(code, &at, &bytes))
		return image_has(code);
	return strchr(" \t\r\n/.", *(const char *)code) && strstr(code, ".attribute(.managed)"); // else it is no text
}

// source returns the type of input for the linker (CUjitInputType) that code is, and sets where the input begins and how many bytes it has.
static int source(const void *code, const void **at, size_t *bytes)
{
	if (image_fat(code, at, bytes))
		return CU_JIT_INPUT_FATBINARY;
	*at = code;
	*bytes = strlen(code) + 1;
	return CU_JIT_INPUT_PTX;
}

// capability returns a device's compute capability, 90 for 9.0; 0: it is not known.
static unsigned capability(CUdevice device)
{
	int major, minor;

	if (driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != CUDA_SUCCESS ||
	    driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != CUDA_SUCCESS)
		return 0;
	return (unsigned)(10 * major + minor);
}

static int count_devices(void)
{
	int count = 0;

	return driver.cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

int image_ready(const void *code)
{
	for (int device = count_devices(); device-- > 0;)
		if (!image_suits(code, capability(device)))
			return 0;
	return 1;
}

// alike returns whether what is compiled for one device is for all of them.
static int alike(void)
{
	for (int device = count_devices(); device-- > 0;)
		if (capability(device) != capability(0))
			return 0;
	return 1;
}

// enter makes a context current, which linkers need: that of a device that has one already, if there is such a device. It returns the device, or -1 if there is no context to be had.
static CUdevice enter(void)
{
	CUdevice device = 0;
	CUcontext context;

	for (int n = 0, active = 0; n < count_devices() && !active; n++) {
		unsigned flags;

		if (driver.cuDevicePrimaryCtxGetState(n, &flags, &active) == CUDA_SUCCESS && active)
			device = n;
	}
	if (driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
		return -1;
	if (driver.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS)
		return device;
	driver.cuDevicePrimaryCtxRelease_v2(device);
	return -1;
}

static int link_code(struct image *i, int type, const void *at, size_t bytes, unsigned count, int *options, void **values)
{
	void *linker, *cubin;
	size_t size;
	int read = 0;

	if (driver.cuLinkCreate_v2(count, options, values, &linker) != CUDA_SUCCESS)
		return 0;
	if (driver.cuLinkAddData_v2(linker, type, (void *)at, bytes, NULL, 0, NULL, NULL) == CUDA_SUCCESS && driver.cuLinkComplete(linker, &cubin, &size) == CUDA_SUCCESS)
		read = image_read(i, cubin);
	driver.cuLinkDestroy(linker);
	return read;
}

int image_compile(struct image *i, const void *code, unsigned count, int *options, void **values)
{
	CUcontext context = NULL;
	CUdevice device = -1;
	const void *at;
	size_t bytes;
	int type, read;

	if (image_cubin(code) || !alike() || driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS)
		return 0;
	type = source(code, &at, &bytes);
	if (!context) {
		device = enter();
		if (device < 0)
			return 0;
	}
	read = link_code(i, type, at, bytes, count, options, values);
	if (!context) {
		driver.cuCtxPopCurrent_v2(&context);
		driver.cuDevicePrimaryCtxRelease_v2(device);
	}
	return read;
}
