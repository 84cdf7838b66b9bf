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
// The package does not log; long operations report to a [Progress].
package image
