// Handing over and taking back. All of it is for the library's thread.
#ifndef CRYO_GPU_HAND_H
#define CRYO_GPU_HAND_H

#include "table.h"

// The states the host knows.
enum { WHOLE = 0, CLOSED = 1, GIVEN = 2 };
int hand_state(void);

// cursor goes over all pieces in ascending order of addresses.
struct cursor {
	size_t place;
	unsigned number_in_range;
	CUdeviceptr address;
	uint32_t number; // of the piece
	struct range *range;
	struct piece *piece;
};
// cursor_next goes to the next piece, at first to the first; false where there is none.
int cursor_next(struct cursor *c);

// hand_close closes the gate and waits for the devices. The gate is open after NOT_READY: some work had not ended; and after
// STREAM_CAPTURE_UNSUPPORTED: a stream was being captured.
CUresult hand_close(unsigned deadline_ms);
// hand_export gives a descriptor of a piece, which is the caller's.
CUresult hand_export(struct piece *p, int *fd);
// hand_given says that all descriptors are with the host; hand_release may follow.
void hand_given(void);
// hand_release unmaps and releases all of it, and lowers limits around the driver's checkpoint. After an error all of it is there; where even that
// could not be done, none, and the state is GIVEN.
CUresult hand_release(void);
// hand_make makes memory for one piece after the other, from number 0 on, and gives a descriptor, the caller's, by which the host fills it. It sets limits back
// first. hand_filled says that the host has filled all. Until then there is none of it if the conversation ends. After an error there is none either.
CUresult hand_make(size_t count, uint32_t number, int *fd);
CUresult hand_filled(void);
CUresult hand_open(void);
// hand_end is for the end of a conversation: what is not handed over goes on.
void hand_end(void);
void hand_forked(void);

#endif
