// Package interrupt asks kernels on a GPU to return early, so that the driver can lock a process whose kernels run for
// minutes. It reaches programs made with contrib/cuda/cryo_interrupt.cuh and leaves all others alone.
//
// Such a program keeps a flag in a page of shared memory, a memfd named "cryo-interrupt", which its kernels read and which is
// found from outside in /proc/PID/maps. While the flag is raised, kernels save their progress and return, and the program
// launches none. Raise it before the driver's lock, lower it once the lock is held or was given up: what the program then
// launches waits for the lock's end.
//
// A flag that is not lowered does not stop a program for good: it expires after a time that the program itself counts.
//
// The process is not trusted. What is opened is made sure to be memory before it is opened, so that no file system of the
// container's can make the caller wait, and nothing is written to memory that the process could not write itself.
// Needs CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN for /proc/PID/map_files, in the first user namespace. Source: proc(5).
package interrupt
