// Access of one device's context to the memory of another's (cuCtxEnablePeerAccess). The driver saves a process that has it and may not be able to restore it. By what driver 580 does, memory must
// be gone before access is taken away, and access be given before memory is made: giving it again is 400 where the driver has large memory. So it goes and comes with what is handed over.
#ifndef CRYO_GPU_PEERS_H
#define CRYO_GPU_PEERS_H

#include "cuda.h"

// peers_count is how many contexts have access to how many others.
unsigned peers_count(void);
// peers_reason returns why access could not be given again, or NULL.
const char *peers_reason(void);
// peers_take_away and peers_give_back are for the library's thread, behind the closed gate, when the process has nothing of its memory. They can be called again.
CUresult peers_take_away(void);
CUresult peers_give_back(void);
// peers_context_ended forgets a context.
void peers_context_ended(CUcontext context);
void peers_forked(void);

#endif
