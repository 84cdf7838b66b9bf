// Package restorable finds what CRIU 4.2 dumps from the processes of a container, and then cannot restore or loses without an error. It reads /proc/PID/fd, fdinfo and maps, and changes nothing: it
// opens no device and no FIFO.
//
// A new rule belongs here if CRIU's dump succeeds and the restored process is not what it was, or if CRIU refuses to dump something in words from which a user cannot tell what to do. What it refuses clearly
// needs no rule.
package restorable
