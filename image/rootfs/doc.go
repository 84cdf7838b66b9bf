// Package rootfs takes and puts back the difference between a container's rootfs and its base image.
//
// While the container stands still, [Capture] copies the upper directory of its overlay file system, as it is. Later [Diff]
// turns the copy into an OCI layer, which does not depend on overlayfs, and on another host [Apply] applies the layer to a
// fresh rootfs.
//
// A restored process must find the files it had. So a layer of Diff keeps what others lose: times in nanoseconds, all extended
// attributes that are the container's own, and access control lists. It does not keep sockets (CRIU makes them again), labels
// of a security module, which belong to the host, and attributes of the rootfs's top directory.
package rootfs
