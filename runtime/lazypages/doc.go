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
// Rules that keep memory right (TestTwin):
//   - Events (munmap, mremap, madvise, fork) are read under a lock that no worker holds while it fills.
//   - State is which pieces are done and which ranges are where now; a child gets a copy. MADV_DONTFORK and MADV_WIPEONFORK are read from CRIU's
//     images: no event tells them.
//   - Zeros are never filled in. A page without a mapping is an error for a restored process, and ignored for a child.
//   - Filling the rest begins only when CRIU says that all tasks run: before, the restorer still arranges memory.
//
// Limits: a thread that forks or moves memory while another unmaps it may be heard in the wrong order (in CRIU's daemon too); pages shared by fork
// become each process's own; a program's own userfaultfd gets EBUSY; a thread that ends while its thread id's page is missing does not clear it.
//
// A userfaultfd that is closed lets go of its process: what is missing reads as zeros from then on. So each must be held open by
// a second process, which ends the container before it lets go should this one die: [Filler.Hold], [Filler.Drop]. Should both have
// to give up, [Filler.Outlive].
package lazypages
