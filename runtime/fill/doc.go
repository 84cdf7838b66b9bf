// Package fill fills the memory of processes that already run. CRIU restores them without it, and a process that touches a
// missing page waits until it is filled. The package takes the place of "criu lazy-pages".
//
// CRIU connects to a unix socket, lazy-pages.socket in its work directory, and sends for each task an int32, its pid in the images
// (negative: it is a zombie and has no memory), and then, with a byte of no meaning, a userfaultfd; when the tasks run, the int32
// 0x52535446 (criu/uffd.c). [Receive] is the other end of that.
//
// [Filler] then fills each process from a [Source]: pages that a process waits for first, then those behind them, then the rest,
// by as many workers as there are cores. The kernel reports, in order, what the processes do to their memory meanwhile (munmap,
// mremap, madvise, fork); each such call waits until its report was read. Sources: userfaultfd(2), ioctl_userfaultfd(2), and in
// the kernel's source Documentation/admin-guide/mm/userfaultfd.rst, "Non-cooperative userfaultfd".
//
// Rules that keep memory right (TestTwin):
//   - Events (munmap, mremap, madvise, fork) are read under a lock that no worker holds while it fills.
//   - The state says which pieces are done and where each range is now; a child gets a copy. MADV_DONTFORK and MADV_WIPEONFORK are read from CRIU's
//     images: no event tells them.
//   - Zeros are never filled in. A page without a mapping is an error for a restored process, and ignored for a child.
//   - Filling the rest begins only when CRIU says that all tasks run: before, the restorer still arranges memory.
//
// Limits: a thread that forks or moves memory while another unmaps it may be heard in the wrong order (in CRIU's daemon too); pages shared by fork
// become each process's own; a program's own userfaultfd gets EBUSY; a thread that ends while its thread id's page is missing does not clear it.
//
// When the last descriptor of a userfaultfd is closed, pages that are missing read as zeros. So a second process holds each one
// too ([Filler.Hold], [Filler.Drop]). If this process dies, the second one ends the container before it closes its own. A process
// whose filler has failed waits with [Filler.Outlive].
package fill
