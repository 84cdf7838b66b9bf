// What the program gets in place of the driver's functions.
#ifndef CRYO_GPU_INTERPOSE_H
#define CRYO_GPU_INTERPOSE_H

// interpose_function gives what stands behind a name of the driver: the library's own version of it, or the driver's function; NULL where the driver
// has none.
void *interpose_function(const char *name);

#endif
