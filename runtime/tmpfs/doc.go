// Package tmpfs saves and restores what containers have in file systems in memory, in the place of the tar that CRIU calls
// for it.
//
// CRIU (criu/filesystems.c) executes "tar --create --gzip …" for each tmpfs of a container, standard output being the image
// tmpfs-dev-N.tar.gz.img, and "tar --extract --gzip …" for its restore. gzip is what takes the time: 37 MB/s on random data.
// So CRIU is given a PATH that begins with a directory in which tar is the shim's program, see package standin, and that program, called
// by that name, is [Main].
//
// The images are what their name says: tar (POSIX pax; files with holes as GNU tar 1.0 has them, see package sparsetar) in gzip whose blocks are
// stored, not compressed. GNU tar and a CRIU without this package read them. Unlike GNU tar's own, they keep extended attributes and
// fractions of seconds. Images in GNU tar's own format are refused.
//
// Images come with snapshots, and restores run as root: whatever an image says, nothing is written outside of the directory, which must be an empty tmpfs, and device nodes
// are made by another process, by the container's specification (see Node).
package tmpfs
