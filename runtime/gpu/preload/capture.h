// Streams that are being captured into graphs. Who waits for a context, or for all, invalidates the captures in it, and a program whose capture fails
// may end itself.
#ifndef CRYO_GPU_CAPTURE_H
#define CRYO_GPU_CAPTURE_H

#include "cuda.h"

// capture_any is true while a stream is being captured, or is about to be.
int capture_any(void);
// capture_wait_begin is true where contexts may be waited for: captures then begin after capture_wait_end. Where it is false there is nothing to end.
int capture_wait_begin(void);
void capture_wait_end(void);
// capture_permits has the driver say whether this thread may allocate and free. While a stream is captured that depends on the modes of
// threads and captures; where it may not, the captures are invalid afterwards, as after every such call. A context is current.
CUresult capture_permits(void);
// capture_context_ended forgets the streams of a context.
void capture_context_ended(CUcontext context);
// capture_forked is for the child of a fork.
void capture_forked(void);

#endif
