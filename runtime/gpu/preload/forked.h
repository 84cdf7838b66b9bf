// What fork makes of the library.
#ifndef CRYO_GPU_FORKED_H
#define CRYO_GPU_FORKED_H

// forked_watch has it look after children from now on.
void forked_watch(void);

#endif
