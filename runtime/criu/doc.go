// Package criu knows CRIU from outside: the configuration file that carries options past runc, the reasons in its
// logs, its version, and what a directory of its images needs on restore.
//
// CRIU itself is executed by runc, never from here; runc looks it up in PATH.
//
// # What cannot be restored
//
// This part finds what CRIU 4.2 dumps from the processes of a container, and then cannot restore or loses without an error. It reads /proc/PID/fd, fdinfo and maps, and changes nothing: it
// opens no device and no FIFO.
//
// A new rule belongs here if CRIU's dump succeeds and the restored process is not what it was, or if CRIU refuses to dump something in words from which a user cannot tell what to do. What it refuses clearly
// needs no rule.
//
// # Page server
//
// This part is the receiving end of CRIU's page server protocol: CRIU sends memory over a socket instead of writing
// pages files.
//
// CRIU sends commands, structures of the machine's byte order (criu/page-xfer.c, struct page_server_iov), and waits for answers
// to some:
//
//	OPEN2   a pagemap begins; answered by a byte, whether a parent snapshot has it: none does
//	ADD_F   pages at an address, with the flags of a pagemap entry; the bytes of the pages follow if the flags say so
//	PARENT  asks whether a parent snapshot has a pagemap; answered by an int32, 0
//	CLOSE   all has been sent; answered by an int32, 0 if it was taken. FORCE_CLOSE on a socket that CRIU has inherited
//
// CRIU dumps one process after the other and ascends within each. It waits for the last answer before it lets the processes go:
// until then, what is on its way may still be the very pages of the processes.
//
// [ServePages] writes the pagemap images as CRIU's own server would and hands the pages to a [PageSink].
//
// # Namespaces
//
// This part does something in a namespace that is not this process's.
package criu
