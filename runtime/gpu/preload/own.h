// Making memory that was attached the process's own: attached memory is another process's, and cannot be exported a second time. It is copied
// from device to device. All of it is for the library's thread, behind the closed gate.
#ifndef CRYO_GPU_OWN_H
#define CRYO_GPU_OWN_H

#include "table.h"

// own_reserve reserves addresses to copy from or to, until own_end; false where there are none.
int own_reserve(void);

// own_begin takes a piece whose imported handle is mapped nowhere. Own memory is mapped at its address, and what is in it is copied meanwhile, until own_settle.
// CUDA_ERROR_OUT_OF_MEMORY: nothing has changed, be it for want of room or because the driver refused something, and handle and fd are the caller's
// still.
CUresult own_begin(struct range *range, struct piece *p, CUdeviceptr address, CUmemGenericAllocationHandle handle, int fd);
// own_settle waits for the copies. CUDA_ERROR_OUT_OF_MEMORY: they have failed, and the pieces are the imported memory. After all else some piece is gone.
CUresult own_settle(void);
// own_in_place does it with one piece that is mapped, by its imported handle, with its room and no more. CUDA_ERROR_OUT_OF_MEMORY: nothing has changed.
// All else: the piece is gone.
CUresult own_in_place(struct range *range, struct piece *p, CUdeviceptr address);
// own_end gives up what is not settled, and the addresses. The pieces' own memory stays as it is.
void own_end(void);

// own_drop lets go of a piece that is not mapped any more.
void own_drop(struct piece *p);

#endif
