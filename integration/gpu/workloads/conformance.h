// What the parts of the conformance program share: the types of NVIDIA's cuda.h and cuda_runtime_api.h that it needs, by their layouts, and how a call is
// made and written down. No header of CUDA is needed to build it, and no library: functions are found as programs find them, by dlopen and dlsym.
#ifndef CONFORMANCE_H
#define CONFORMANCE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t u64;
typedef u64 ptr; // CUdeviceptr

typedef struct { int type, id; } location;
typedef struct { location where; int flags; } access_desc;
typedef struct {
	int type, handles;
	location where;
	void *win32;
	struct { unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } flags;
} alloc_prop;
typedef struct { int type, handles; location where; void *win32; size_t max; unsigned short usage; unsigned char reserved[54]; } pool_props;
typedef struct { pool_props pool; const access_desc *access; size_t access_count, bytes; ptr pointer; } alloc_node;
typedef struct { ptr to; size_t pitch; unsigned value, element; size_t width, height; } memset_node;
typedef struct { char bytes[64]; } handle64; // CUipcMemHandle, CUipcEventHandle, CUmemPoolPtrExportData
typedef struct { size_t x, y; int type; const void *host; ptr device; void *array; size_t pitch; } side2;
typedef struct { side2 from, to; size_t width, height; } copy2;
typedef struct { size_t x, y, z, lod; int type; const void *host; ptr device; void *array, *context; size_t pitch, height; } side3;
typedef struct { side3 from, to; size_t width, height, depth; } copy3; // CUDA_MEMCPY3D and CUDA_MEMCPY3D_PEER
typedef struct { size_t width, height; int format; unsigned channels; } array_desc;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } array3_desc;
typedef struct {
	int type;
	union {
		void *array;
		struct { ptr device; int format; unsigned channels; size_t bytes; } linear;
		struct { ptr device; int format; unsigned channels; size_t width, height, pitch; } pitch;
		int reserved[32];
	} of;
	unsigned flags;
} resource_desc;
typedef struct { int mode[3], filter; unsigned flags, anisotropy; int mip_filter; float bias, least, most, border[4]; int reserved[12]; } texture_desc;
typedef struct { int type; union { int fd; struct { void *handle; const void *name; } win32; } of; u64 bytes; unsigned flags, reserved[16]; } external_desc;
typedef struct { u64 offset, bytes; unsigned flags, reserved[16]; } buffer_desc;
typedef struct { unsigned devices; size_t bytes; u64 handles, flags; } multicast_prop;
typedef struct { int order; location from, to; unsigned flags; } copy_attributes;

enum { HOST = 1, DEVICE = 2, ARRAY = 3, UNIFIED = 4 }; // CUmemorytype
enum { FLOAT = 0x20, BYTES = 0x01 };                   // CUarray_format

#define KIB ((size_t)1024)
#define MIB ((size_t)1 << 20)

extern size_t piece; // how large the library's pieces are

// CALL makes a call and begins a line with it: its name, a note that distinguishes it from others, and what it returned. It is the result; ABSENT where the
// library has no such function. A call that ends in a signal ends the test.
#define ABSENT (-1)
#define CALL(name, note, ...) call(#name, note, (u64[]){EACH(__VA_ARGS__)}, sizeof((u64[]){EACH(__VA_ARGS__)}) / sizeof(u64))
int call(const char *name, const char *note, const u64 *arguments, size_t count);
// DO is CALL for what only prepares: it writes nothing unless it fails.
#define DO(name, ...) quiet(#name, (u64[]){EACH(__VA_ARGS__)}, sizeof((u64[]){EACH(__VA_ARGS__)}) / sizeof(u64))
int quiet(const char *name, const u64 *arguments, size_t count);
// function returns one by its name for a call that CALL cannot make, begun and returned write it down.
void *function(const char *name);
void begun(const char *name, const char *note);
int returned(int result);

// calls_open opens the libraries. calls_begin begins a test, which ends after so many seconds.
void calls_open(void);
void calls_begin(const char *test, int seconds);
void print(const char *bytes, size_t n);

// What follows adds to the line of the last call.
void value(const char *name, u64 number);
void text(const char *format, ...) __attribute__((format(printf, 1, 2)));
// address adds an address as an offset into the allocations that known has named.
void address(const char *name, ptr at);
void known(const char *name, ptr at, size_t bytes);
// pool_values asks a pool for its attributes from the first one to the last one. The driver rounds what is reserved and in use (5 to 8) to its own pages.
void pool_values(const char *what, void *pool, int last);
void forget(const char *name);
// end ends the line.
void end(void);
// note is a line that is no call.
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
// room adds how much less memory is free than at the last memory_now, to 2 MiB.
void memory_now(void);
void room(void);
// pattern and same are bytes by a seed.
void pattern(void *to, size_t bytes, unsigned seed);
int same(const void *what, size_t bytes, unsigned seed);
// holds adds whether device memory has a pattern.
void holds(ptr at, size_t bytes, unsigned seed);
void fill(ptr at, size_t bytes, unsigned seed);
// attributes writes down all attributes of a pointer.
void attributes(const char *what, ptr at);

// context initialises the driver and makes the first device's primary context current.
void *context(void);
// other runs this program once more, for a test's second process, with a word and a handle; tell lets it go on, finish waits for its end.
struct other { int pid, in, out; };
struct other other(const char *what, const void *bytes, size_t size);
void tell(struct other *o);
void hear(struct other *o);
void finish(struct other *o);
// told and heard are tell and hear in that process.
void told(void);
void say(void);
int bytes_of(const char *hex, void *to, size_t size);

struct test { const char *name; void (*run)(void); int seconds; };
extern const struct test memory_tests[], asked_tests[], managed_tests[], pool_tests[], virtual_tests[], mapped_tests[], graph_tests[], shared_tests[], runtime_tests[];
// runtime_second is the second process of the runtime's tests.
void runtime_second(const handle64 *handle);
// second is what the second process of a test does, by what other was told.
void second(const char *what, const char *hex);

// EACH casts all arguments to words, as functions of C take integers and pointers.
#define W(x) ((u64)(uintptr_t)(x))
#define EACH(...) PICK(__VA_ARGS__, E12, E11, E10, E9, E8, E7, E6, E5, E4, E3, E2, E1)(__VA_ARGS__)
#define PICK(a, b, c, d, e, f, g, h, i, j, k, l, m, ...) m
#define E1(a) W(a)
#define E2(a, ...) W(a), E1(__VA_ARGS__)
#define E3(a, ...) W(a), E2(__VA_ARGS__)
#define E4(a, ...) W(a), E3(__VA_ARGS__)
#define E5(a, ...) W(a), E4(__VA_ARGS__)
#define E6(a, ...) W(a), E5(__VA_ARGS__)
#define E7(a, ...) W(a), E6(__VA_ARGS__)
#define E8(a, ...) W(a), E7(__VA_ARGS__)
#define E9(a, ...) W(a), E8(__VA_ARGS__)
#define E10(a, ...) W(a), E9(__VA_ARGS__)
#define E11(a, ...) W(a), E10(__VA_ARGS__)
#define E12(a, ...) W(a), E11(__VA_ARGS__)

#endif
