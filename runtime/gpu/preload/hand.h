// Handing over and taking back. All of it is for the library's thread.
#ifndef CRYO_GPU_HAND_H
#define CRYO_GPU_HAND_H

#include "table.h"

// The states the host knows.
enum { WHOLE = 0, CLOSED = 1, GIVEN = 2 };
int hand_state(void);
// hand_lends is true as long as other processes may get memory by handles of legacy IPC: the host does not know yet what is shared.
int hand_lends(void);

// hand_pieces counts the pieces that there are to hand over, hand_foreign those that are there and not the process's own.
size_t hand_pieces(void);
size_t hand_foreign(void);

// cursor goes over all pieces in ascending order of addresses, once the gate is closed.
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

// FILES is how many descriptors the program may have beside those of its memory.
#define FILES 256

// hand_reason says why nothing can be handed over as things are, or is NULL.
const char *hand_reason(void);
// hand_close closes the gate and waits for the devices. The gate is open after NOT_READY: some work had not ended, unless it is to stay closed; and after
// STREAM_CAPTURE_UNSUPPORTED: a stream was being captured.
CUresult hand_close(unsigned deadline_ms, int stay);
// hand_steps lets threads that wait at a gate that stayed closed, or was closed and nothing given since, make so many calls, see gate_steps; hand_close follows.
void hand_steps(unsigned calls);
// hand_look looks whether the driver would still find memory that comes by descriptors, while the program runs; hand_mistaken tells.
void hand_look(void);
int hand_mistaken(void);
// hand_stood is true once the gate was closed: the driver may have saved and restored the process then.
int hand_stood(void);
// hand_export gives a descriptor of a piece. The caller closes it if it is not the piece's own.
CUresult hand_export(struct piece *p, int *fd);
// hand_given says that all descriptors are with the host; hand_release may follow.
void hand_given(void);
// hand_part lets go of what is imported, and of all descriptors of memory that is shared. From then on no end of a conversation opens the gate: others wait for this process's memory. It
// comes ahead of hand_release where anything is shared, in all processes that share. After an error it can be done again, or imports be brought back.
CUresult hand_part(void);
// hand_unbind is the first step of that: it unbinds and unmaps multicast objects, in all processes ahead of the second. hand_join has all devices be added to multicast objects when these are there again, in all
// processes ahead of hand_bind, which binds and maps them.
CUresult hand_unbind(void);
CUresult hand_join(void);
CUresult hand_bind(void);
// hand_release unmaps and releases all of it, takes away access between GPUs, and lowers limits around the driver's checkpoint. After an error all of it is there; where even that
// could not be done, none, and the state is GIVEN.
CUresult hand_release(void);
// hand_attach_begin, which gives access back and sets limits back, and hand_attach for each piece in order with a descriptor that it takes over. After an error none is attached.
CUresult hand_attach_begin(size_t count);
CUresult hand_attach(uint32_t number, int fd);
// hand_attach_settle waits for what is being copied of those before, and comes ahead of an answer and of the end.
CUresult hand_attach_settle(void);
// hand_attach_end fails unless there has been one for each piece.
CUresult hand_attach_end(void);
// hand_make makes memory for one piece after the other, from number 0 on, and gives a descriptor, the caller's, by which the host fills it. hand_filled says
// that it has filled all. Until then there is none of it if the conversation ends. After an error there is none either.
CUresult hand_make(size_t count, uint32_t number, int *fd);
CUresult hand_filled(void);
// hand_own makes what is another process's the process's own as far as there is room for it.
CUresult hand_own(void);
// hand_open opens the gate. ILLEGAL_STATE: not all memory is there, or not all that is imported.
CUresult hand_open(void);
// hand_end is for the end of a conversation: what is not handed over goes on.
void hand_end(void);
void hand_forked(void);

#endif
