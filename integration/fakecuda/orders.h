// Failures to order, README.md has the form of the file.
#ifndef FAKECUDA_ORDERS_H
#define FAKECUDA_ORDERS_H

#include "cuda.h"

struct order {
	CUresult error;   // instead of the call
	unsigned slow_ms; // in the process
	int exit_after;
};

// orders_take carries out the next order for this call, waits included, and gives what is left of it to do.
struct order orders_take(const char *call, int pid);
// orders_done writes the log, and ends the helper where that was ordered. It returns the result.
CUresult orders_done(const struct order *order, const char *call, int pid, CUresult result);
// orders_init is both for cuInit.
CUresult orders_init(void);
// orders_own carries out the next order for a call that a program makes for itself. It is not logged.
CUresult orders_own(const char *call);
// orders_on is the same for a call that is about one device's memory; NULL: it is not known which. orders_given is false where nobody need look for it.
CUresult orders_on(const char *call, const CUuuid *device);
int orders_given(void);
// process_number is the nth process by pid in pid's session, of those that use the fake driver, from 1; 0: none of them.
int process_number(int pid);

#endif
