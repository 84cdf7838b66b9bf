// Multicast objects (cuMulticastCreate), by which kernels write to memory of several GPUs at once, as NCCL has them (NVLS) and PyTorch's symmetric memory. In the books an object is memory without
// contents: it has handles, mappings and a descriptor as such, and in addition the devices that this process has added, and what it has bound.
//
// The driver's checkpoint of a process with an object hangs. So ahead of it all processes unbind and unmap their objects, then release them. Afterwards owners make them anew and export them, the
// others import them; all add their devices; then all bind and map, since a bind waits in the driver until all devices are added. The host has all processes do each of these before any does the next.
#ifndef CRYO_GPU_MULTICAST_H
#define CRYO_GPU_MULTICAST_H

#include "virtual.h"

// binding is memory that the process has bound for a device, by a call with the device or without (of). gone: the object does not have it now. The memory counts it as one of its mappings.
struct binding { size_t at, bytes, offset; struct memory *memory; CUdevice device; int of, gone; };
struct multicast {
	CUmulticastObjectProp prop; // as the program has asked for it; of an import nothing
	uint64_t devices, added;    // that the program has added, by bits; that the object has got of these
	struct binding *bindings;
	size_t count, most;
};

// multicast_import makes an import a multicast object, if it is none yet; false where there is no room. virtual_lock holds.
int multicast_import(struct memory *m);
// multicast_end forgets what a multicast object has bound, and frees the books of it. virtual_lock holds.
void multicast_end(struct memory *m);
// multicast_devices counts those that the process has added to an object.
unsigned multicast_devices(const struct memory *m);
// multicast_count counts the objects. It notes (multicast_wild) that one is in use of whose team a process has ended that nothing remembers.
unsigned multicast_count(void);
// multicast_wild notes (unknown) that there is an object, or something of one, that is in no books, with which the driver's checkpoint would hang, or which would be missing afterwards. multicast_is_wild
// tells.
void multicast_wild(const char *reason);
int multicast_is_wild(void);

// These are for the library's thread, behind the closed gate. multicast_there reports whether the driver has an object, and multicast_apart whether something is missing from one.
int multicast_there(void);
int multicast_apart(void);
// multicast_unbind unbinds and unmaps all objects, and multicast_bind binds and maps them again; each until that fails, and the next call goes on. multicast_bind fails without asking the driver
// where the object is not the driver's, or lacks a device.
CUresult multicast_unbind(void);
CUresult multicast_bind(void);
// multicast_release releases all objects, when they are unmapped, and closes their descriptors.
CUresult multicast_release(void);
// multicast_renew makes an object of the process's own anew, in the place of one that is there: processes may have released theirs. multicast_take has an import be the object of a descriptor, which
// it takes over, in the same way. multicast_join makes what is not there of the process's own, and adds all devices.
CUresult multicast_renew(struct memory *m);
CUresult multicast_take(struct memory *m, int fd);
CUresult multicast_join(void);

#endif
