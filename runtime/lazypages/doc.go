// Package lazypages fills the memory of processes that run already: CRIU restores them without it, and what they touch and is not
// there yet waits for us. It stands where "criu lazy-pages" would.
//
// CRIU connects to a unix socket, lazy-pages.socket in its work directory, and sends for each task an int32, its pid in the images
// (negative: it is a zombie and has no memory), and then, with a byte of no meaning, a userfaultfd; when the tasks run, the int32
// 0x52535446 (criu/uffd.c). [Receive] is the other end of that.
//
// [Filler] then fills each process from a [Source]: pages that somebody waits for first, then those behind them, then the rest,
// by as many workers as there are cores. What the processes do to their memory meanwhile (munmap, mremap, madvise, fork) the
// kernel tells in order, and waits until it was heard: userfaultfd(2), ioctl_userfaultfd(2), and in the kernel's source
// Documentation/admin-guide/mm/userfaultfd.rst, "Non-cooperative userfaultfd".
//
// A userfaultfd that is closed lets go of its process: what is missing reads as zeros from then on. So each must be held open by
// a second process, which ends the container before it lets go should this one die: [Filler.Hold], [Filler.Drop]. Should both have
// to give up, [Filler.Outlive].
package lazypages
