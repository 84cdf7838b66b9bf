// Package warm keeps snapshots ready in memory, so that a restore reads neither from the network nor from a disk, and neither
// decompresses nor hashes memory again.
//
// They lie in a tmpfs of their own, mounted at <root>/warm, root's alone and not swapped out where the kernel can do that (6.4).
// After a reboot there is nothing. Each snapshot is a directory that is called by the digest of its manifest:
//
//	lock        held (shared) while a restore begins with it; its time of modification is that of the last use
//	entry.json  [Info]
//	blobs/      all blobs but the segments, verified when they are read
//	memory      as [image.Decode] writes it; held (shared) while a container's memory is filled in from it
//
// A directory gets that name when it is whole, by a rename; what has another name is being made or removed, by who holds
// <root>/warm.lock, or is left of who died, and goes when the next one looks.
package warm
