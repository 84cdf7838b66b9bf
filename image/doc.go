// Package image makes snapshots of dumped containers and reads them.
//
// A snapshot is one OCI manifest, which any registry and any OCI client can carry: a config ([Config]), an index (package
// image/index) that says where each page of memory is, CRIU's images, the rootfs difference (package image/rootfs) and the
// memory itself in segments (package image/segment). FORMAT.md is normative.
//
// [Pack] makes a snapshot of a directory of CRIU's images:
//
//	manifest, err := image.Pack(ctx, store, image.PackSource{Images: dir, Config: cfg}, image.PackOptions{})
//
// With a [Parent], it lists segments of an earlier snapshot and stores only what these do not hold.
//
// [Open] reads what is needed to judge a snapshot, [Snapshot.Unpack] gives back a directory that criu restore takes,
// [Snapshot.ReadRootFS] the rootfs difference, and [Verify] reads everything:
//
//	s, err := image.Open(ctx, store, manifest)
//	err = s.Unpack(ctx, store, dir, image.UnpackOptions{})
//
// Nothing that is read is trusted. What does not verify gives an error of kind DataLoss (github.com/containerd/errdefs);
// errors that a user can do something about have a method Hint.
//
// # How memory is cut
//
//  1. Memory of one pagemap is cut at multiples of the segment size, a power of two from 1 MiB to 8 GiB (by default 64 or 256 MiB), into windows, and
//     these at multiples of 1 MiB into frames. Pages of zeros, and what becomes empty, are left out.
//  2. A window in which CRIU dumped at least a 16th of the segment size (zero pages counted) is a segment. These come first, by pagemap (processes by
//     pid, then shared memory by number) and address.
//  3. The others are pooled in the same order. A pool ends before the segment size would be exceeded, and, once it holds a quarter of it (zero pages
//     counted), before a window whose key has a 64-bit FNV-1a hash that is a multiple of 4; the key is the name of the pagemap, a space and the
//     hexadecimal number of the window.
//  4. A frame is zstd where that saves a 20th or more, else raw. The compressor gives the same bytes whatever the machine and the number of threads.
//  5. Device memory is cut likewise and by itself, after all else, with a process's on one GPU in the place of a pagemap (key: device-PID-GPU) and a
//     segment size of at most 256 MiB. A frame of it is zstd only where it becomes a quarter or less, and so does its sample if it is longer than
//     64 KiB: four slices of 16 KiB one after the other, which begin at 0, 1, 2 and 3 thirds of what its length is more than 16 KiB, rounded down.
//
// With a parent whose segments the writer has at hand:
//
//  6. A frame with the digest of a frame of the parent is not stored again: the index names its place in the parent's segment. Of several with one
//     digest, the first of the parent serves the first of the snapshot (by pagemap and address, device memory last), and so on; frames beyond those
//     are stored.
//  7. The parent's segments that are used come first, in its order. What is used of a segment is stored with the new frames instead, as it was there,
//     where less than half of its bytes would be in use, where there are more than 64 segments of less than a 16th of the segment size beyond as
//     many as there are by the rules above, and for the first ones beyond 7,500.
//  8. A window with new frames of a quarter of the segment size is a segment. These come next, then all other new frames, by pagemap and address, in
//     segments of at most the segment size. Device memory is cut in the same two steps afterwards.
//
// The package does not log; long operations report to a [Progress].
package image
