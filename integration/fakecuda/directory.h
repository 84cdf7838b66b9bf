// Device memory as files: FAKECUDA_DIR/UUID/mem-NUMBER, each locked by the process that has it. A file without a lock is
// that of a process that was killed, and is removed by the next one that looks.
#ifndef FAKECUDA_DIRECTORY_H
#define FAKECUDA_DIRECTORY_H

#include "memory.h"

#define MEMORY_NAME 40

// directory_devices lists the devices that are visible here.
int directory_devices(struct device *found, int most);
// directory_total reads a device's size; false where it is not visible.
int directory_total(struct device *device);
// directory_number reads the number that a device is known by; -1: it has none.
int directory_number(const struct device *device);
// directory_used is what is allocated on a device, bytes.
int64_t directory_used(const struct device *device);
// directory_create makes a file of zeros if the device has room for it. fd is -1 where it has not.
CUresult directory_create(const struct device *device, size_t bytes, char name[MEMORY_NAME], int *fd);
// directory_device gives which of the devices a descriptor's file is of, or -1.
int directory_device(const struct device *known, int count, int fd);
// directory_name is the name of the file of a descriptor of memory; false where it is none.
int directory_name(int fd, char name[MEMORY_NAME]);
// directory_open opens a file that another process has made; -1 where that has removed it, or has died.
int directory_open(const struct device *device, const char *name);
// directory_again opens the file of a descriptor once more, as the real driver does each time that it exports or imports memory: each is an open file of its own. -1: it cannot.
int directory_again(int fd);
// directory_let_go closes a descriptor, and removes its file unless it is held elsewhere: by another descriptor or a mapping.
void directory_let_go(const struct device *device, int fd);
void directory_remove(const struct device *device, const char *name, int fd);
// directory_thread finds the driver's thread in a process, which carries out the checkpoint calls of the helper; 0: it has none.
int directory_thread(int pid);

#endif
