// Whether the process's memory can be handed over.
#ifndef CRYO_GPU_ABLE_H
#define CRYO_GPU_ABLE_H

// unable says why it cannot, from now on. The first reason stays.
void unable(const char *reason);
// unable_reason is NULL as long as it can.
const char *unable_reason(void);
// unknown notes that the process shares GPU memory in a way that is in none of the library's books. The first reason stays. It matters where others of the container use GPUs too.
void unknown(const char *reason);
// unknown_reason is NULL as long as all that is shared is in the books.
const char *unknown_reason(void);
// unable_in_child says that this is a child of fork of a process that used CUDA: it can use nothing of it.
void unable_in_child(void);

#endif
