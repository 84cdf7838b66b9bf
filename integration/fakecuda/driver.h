// What the files of the driver's own side share.
#ifndef FAKECUDA_DRIVER_H
#define FAKECUDA_DRIVER_H

#include "memory.h"

struct fake_context {
	int device, alive, primary;
	unsigned retained;               // a primary one
	unsigned peers;                  // devices whose memory it may use, by bits
};

extern __thread CUcontext current;

// enter begins a call and leave ends it: between them no other call is in progress. enter waits while the driver is locked.
CUresult enter(void);
CUresult leave(CUresult r);
// enter_idle is enter, and waits for launched work.
CUresult enter_idle(void);

int contexts_have_peers(void); // peer access was enabled
void contexts_forget(void);    // for a child after fork

#endif
