// Package store keeps snapshots on this machine.
//
// The directory <root>/store is an OCI image layout (oci-layout, index.json, blobs/sha256) that skopeo, oras and crane
// read as it stands. Beside it lie <root>/ingest (blobs being written), <root>/partial (interrupted downloads),
// <root>/suspect (an empty file for each blob that may be damaged), <root>/prewarmed (a JSON file for each snapshot that is prewarmed),
// <root>/work (directories of running operations), <root>/id (the store's name, see [ID]) and two lock files.
//
// Several processes may use one root at once. A blob is written to ingest or partial, synced and renamed, so it is
// complete or not there. index.json is replaced by a rename under an flock. A blob that no tag needs any more is removed
// by [Store.Remove], and after a tag has moved, but never while an [Operation] of any process runs: what an operation wrote and has not tagged yet
// stays. The process that ends the last operation then removes what is left. While a manifest that a tag needs cannot be read, no blob is removed.
//
// <root>/index.backup.json is what index.json is. Where index.json is damaged, the backup is read, and where both are, an index is made of the blobs, in which snapshots
// have names of [LostName]. The next write puts it in the place of the damaged one.
//
// # Reading while it is pulled
//
// This part reads segments of a snapshot while they are being pulled.
//
// A [PullSource] gives the segments that the store has. It reads others from the file into which they are pulled, by this process. A range that has not come yet is requested
// before the rest, and the pull does not fetch it again. What is read this way is not verified: its reader must do that, and may have a segment fetched again.
package store
