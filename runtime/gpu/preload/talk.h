// The messages; runtime/gpu/library/wire.go is the other side.
#ifndef CRYO_GPU_TALK_H
#define CRYO_GPU_TALK_H

// talk_once answers one message; false where there is none any more, or it is not one. It is called, and returns, with thread_hold.
int talk_once(int socket);

#endif
