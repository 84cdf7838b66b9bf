// What a process of the fake driver and a helper share: one structure in the process's memory, at an offset of libcuda.so.1
// that both know because both have mapped the same file. Nothing is open for it, so a dump carries it.
#ifndef FAKECUDA_CONTROL_H
#define FAKECUDA_CONTROL_H

#include "cuda.h"

#define CONTROL_MAGIC "fakecuda control"
#define MAX_DEVICES 16

enum call { CALL_LOCK = 1, CALL_CHECKPOINT, CALL_RESTORE, CALL_UNLOCK };

struct request {
	int call;
	int64_t deadline;  // of a lock, CLOCK_MONOTONIC in ns; 0: none
	unsigned slow_ms;  // takes so long
	unsigned pairs_count;
	CUcheckpointGpuPair pairs[MAX_DEVICES];
};

struct control {
	char magic[sizeof(CONTROL_MAGIC)];
	int initialized;      // after cuInit
	int attended;         // a thread carries requests out: after cuInit, or NVML
	int state;            // CUprocessState
	struct request request;
	unsigned asked;       // the helper counts up after it has written the request
	unsigned answered;    // the process sets it to asked after it has written the result
	int result;
};

// RESTORE_THREAD is the name of the thread that carries out the checkpoint calls of the helper.
#define RESTORE_THREAD "cuda00001400006"

extern struct control control;

int64_t now_ns(void);
void sleep_ms(unsigned ms);

// uuid_text writes "GPU-" and 36 characters; uuid_parse is false for anything else.
#define UUID_TEXT 41
void uuid_text(const CUuuid *uuid, char text[UUID_TEXT]);
int uuid_parse(const char *text, CUuuid *uuid);

#endif
