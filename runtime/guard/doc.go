// Package guard keeps a restore from what was not granted: CRIU is confined while it restores, and the container is compared with its specification before it runs.
//
// # Confinement
//
// This part runs CRIU's restore of a container in a mount namespace in which nothing of the host can be written to, and has the result checked before
// the container runs.
//
// CRIU restores as root, and its images, which come with snapshots, name files, mounts and cgroups. They are reviewed before (image/trust). What the review
// misses ends here: a write outside of the container fails with EROFS.
//
// runc calls criu and gets cryo-guard instead (part Stand-ins), which runs [ConfineMain]. For all but a restore it becomes CRIU at once. For a restore it takes
// runc's request, makes the mount namespace, replaces in the request the paths that CRIU writes to by those that they have there, and becomes CRIU. So CRIU is still
// runc's child, in the cgroup that runc has put it in. The program gives the sockets of runc and of CRIU to the shim, whose [Relay] passes messages on and asks,
// before the last of CRIU's notifications, whether the container may run.
//
// In that mount namespace
//   - all mounts of the host are read-only, /proc/sys included but for what belongs to namespaces of the container;
//   - CRIU's work directory, the container's root file system and the sources of its bind mounts are as they are for the container, read-only where its specification says so;
//   - /tmp is empty and CRIU's alone, and is where root file system and sources are.
//
// CRIU may mount, and so could make file systems of the host's anew, or a read-only mount writable. Before the program becomes CRIU, it reads what CRIU would mount, make and unlink
// (criu.CheckWrites), and ends if that is outside of the container. It gives up the capabilities that CRIU does not need, and joins a session keyring of the container's.
//
// Where the shim has decided so ([ShareMemory]), the program also asks the kernel to share equal memory of the processes that CRIU makes.
//
// What it does not keep CRIU from: the kernel's own calls, as root with the capabilities that are left, and files of other processes by way of /proc/PID/root.
//
// # Comparison
//
// This part compares what CRIU has restored with what the container's specification grants, by what the kernel says of it, before the container runs.
//
// The review of CRIU's images (image/trust) asks the same of what the images say. This asks the kernel, and so does not depend on how CRIU reads images.
//
// # Stand-ins
//
// This part has runc and CRIU find the program cryo-guard in the place of those that they look for in PATH: of tar, which CRIU calls for file systems
// in memory (see part File systems in memory), and of criu, which runc calls (see part Confinement).
//
// # File systems in memory
//
// This part saves and restores what containers have in file systems in memory, in the place of the tar that CRIU calls
// for it.
//
// CRIU (criu/filesystems.c) executes "tar --create --gzip …" for each tmpfs of a container, standard output being the image
// tmpfs-dev-N.tar.gz.img, and "tar --extract --gzip …" for its restore. gzip is what takes the time: 37 MB/s on random data.
// So CRIU is given a PATH that begins with a directory in which tar is cryo-guard, see part Stand-ins, and that program, called
// by that name, is [TarMain].
//
// The images are what their name says: tar (POSIX pax; files with holes as GNU tar 1.0 has them, see package format) in gzip whose blocks are
// stored, not compressed. GNU tar and a CRIU without this package read them. Unlike GNU tar's own, they keep extended attributes and
// fractions of seconds. Images in GNU tar's own format are refused.
//
// Images come with snapshots, and restores run as root: whatever an image says, nothing is written outside of the directory, which must be an empty tmpfs, and device nodes
// are made by another process, by the container's specification (see Node).
package guard
