#ifndef CRYO_GPU_BOUND_H
#define CRYO_GPU_BOUND_H

// bound_check says that the process is unable where some part of the program has functions of the driver that are not behind the gate:
// a library that was opened with RTLD_DEEPBIND, or a function that names.h does not have.
void bound_check(void);

#endif
