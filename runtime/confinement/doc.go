// Package confinement runs CRIU's restore of a container in a mount namespace in which nothing of the host can be written to, and has the result checked before
// the container runs.
//
// CRIU restores as root, and its images, which come with snapshots, name files, mounts and cgroups. They are reviewed before (image/trust). What the review
// misses ends here: a write outside of the container fails with EROFS.
//
// runc calls criu and gets the shim's program instead (package standin), which runs [Main]. For all but a restore it becomes CRIU at once. For a restore it takes
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
// What it does not keep CRIU from: the kernel's own calls, as root with the capabilities that are left, and files of other processes by way of /proc/PID/root.
package confinement
