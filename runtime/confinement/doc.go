// Package confinement has CRIU restore a container in a mount namespace of its own, in which nothing of the host can be written to, and has what it has made
// looked at before the container runs.
//
// CRIU restores as root, and its images, which come with snapshots, name files, mounts and cgroups. They are reviewed before (image/trust). What the review
// misses ends here: a write outside of the container fails with EROFS.
//
// runc calls criu, finds the shim's program in its place (package standin), and that program is [Main]. For all but a restore it becomes CRIU at once. For a
// restore it takes runc's request, makes the mount namespace, replaces in the request what CRIU is to write to by what it can reach there, and becomes CRIU: so
// CRIU is runc's child, as ever, in the cgroup that runc has put it in. The sockets of runc and of CRIU it gives to the shim, whose [Relay] passes on what they
// say to each other, and asks before the last of CRIU's notifications whether the container may run.
//
// In that mount namespace
//   - all mounts of the host are read-only, /proc/sys included but for what belongs to namespaces of the container;
//   - CRIU's work directory, the container's root file system and the sources of its bind mounts are as they are for the container;
//   - /tmp is empty and CRIU's alone, and is where root file system and sources are.
//
// What it does not keep CRIU from: the kernel's own calls, as root with all capabilities, and files of other processes by way of /proc/PID/root.
package confinement
