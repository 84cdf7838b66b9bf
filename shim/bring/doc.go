// Package bring makes running containers of snapshots. It is the client's side of a restore. It starts a restore process, which finds and prepares the snapshot
// (packages restorer and restore). Meanwhile it asks containerd for a container of the snapshot's specification and base image, and for its task. It is done when
// the container runs, or when all of its memory is in the local store.
//
// Until the container runs, an error or the end of this process undoes everything. Afterwards the container does not depend on it.
package bring
