// Package image makes snapshots of dumped containers and reads them.
//
// A snapshot is one OCI manifest, which any registry and any OCI client can carry: a config ([Config]), an index (package
// image/format) that says where each page of memory is, CRIU's images, the rootfs difference (part The rootfs difference) and the
// memory itself in segments (package image/format). FORMAT.md is normative.
//
// [Pack] makes a snapshot of a directory of CRIU's images:
//
//	manifest, err := Pack(ctx, store, PackSource{Images: dir, Config: cfg}, PackOptions{})
//
// With a [Parent], it lists segments of an earlier snapshot and stores only what these do not hold.
//
// [Open] reads what is needed to judge a snapshot, [Snapshot.Unpack] gives back a directory that criu restore takes,
// [Snapshot.ReadRootFS] the rootfs difference, and [Verify] reads everything:
//
//	s, err := Open(ctx, store, manifest)
//	err = s.Unpack(ctx, store, dir, UnpackOptions{})
//
// Nothing that is read is trusted. Data that does not verify gives an error of kind DataLoss (github.com/containerd/errdefs). Errors that a user can do
// something about have a method Hint.
//
// # How memory is cut
//
// Memory of one pagemap is cut at multiples of the segment size into windows, and these at multiples of 1 MiB into frames. The segment size is a power of
// two from 1 MiB to 8 GiB, by default 64 or 256 MiB. Pages of zeros are left out, and so are frames and segments that become empty. "In the order of memory"
// means by pagemap (processes by pid, then shared memory by number, device memory last) and address.
//
//  1. A window in which CRIU dumped at least a 16th of the segment size (zero pages counted) is a segment. These segments come first, in the order of memory.
//  2. The frames of all other windows follow in the order of memory, in segments of at most the segment size.
//  3. A frame is zstd if that saves a 20th or more, else raw. The compressor gives the same bytes whatever the machine and the number of threads.
//  4. Device memory is cut by the same rules, after all else, with a segment size of at most 256 MiB. The memory of one process on one GPU takes the place of
//     a pagemap.
//  5. A frame of device memory is zstd only if that makes it a quarter as long or shorter. If it is longer than 64 KiB, the same must hold for a sample of
//     four slices of 16 KiB, one after the other. The slices begin at 0, 1, 2 and 3 thirds of (length - 16 KiB), rounded down.
//
// # Increments
//
// A snapshot with a parent, whose segments the writer has at hand, lists segments of the parent and stores only frames that these do not hold.
//
//  1. A frame is reused if the parent has one with its digest. Each frame of the parent is reused once: of several with the same digest, the parent's first
//     serves the snapshot's first in the order of memory, and so on. A frame for which none is left is stored again.
//  2. A segment of the parent is kept if at least half of its bytes are reused.
//  3. Small segments of the parent, of less than a 16th of the segment size, are not kept if there would be more than 64 + N of them. N is the number of
//     segments that all memory would fill.
//  4. If more than 7,500 segments would still be kept, the first ones are not, so that 7,500 are.
//  5. Reused frames of segments that are not kept are copied, as they are stored there, and treated like new ones from here on.
//  6. A window is a segment if its frames that the parent does not have are at least a quarter of the segment size before compression.
//  7. The segments of the parent come first, in its order. Then come those that are new, as without a parent.
//
// The package does not log; long operations report to a [Progress].
//
// # The runnable image
//
// This part makes an ordinary container image of a snapshot: the layers of its base image, and the rootfs difference on top. A registry
// has both under one name, as two entries of an index. A client that pulls that name for a platform gets the image and no memory; cryo finds the snapshot.
//
// The image's configuration names the snapshot by digest ([RunnableLabel]): a name that is moved later cannot pair the image with another snapshot.
//
// # The rootfs difference
//
// This part takes and puts back the difference between a container's rootfs and its base image.
//
// While the container stands still, [CaptureRootFS] copies the upper directory of its overlay file system, as it is. Later [DiffRootFS]
// turns the copy into an OCI layer, which does not depend on overlayfs, and on another host [ApplyRootFS] applies the layer to a
// fresh rootfs.
//
// A restored process must find the files it had. So a layer of DiffRootFS keeps what others lose: times in nanoseconds, all extended
// attributes that are the container's own, and access control lists. It does not keep sockets (CRIU makes them again), labels
// of a security module, which belong to the host, and attributes of the rootfs's top directory.
//
// # Cores
//
// This part says how much is done side by side while something else needs the processor. All of that follows from the number of cores, by one rule:
// what a container waits for has a core of its own, and both of two.
package image
