// Package bring makes running containers of snapshots. It is a restore's sequence on the side of who wants one: a restore process is started, which finds and
// prepares the snapshot (packages restorer and restore), and containerd is asked for a container of the snapshot's specification and base image, and for its task,
// while that process prepares. It ends when the container runs, or when all of its memory is in the local store.
//
// Until the container runs, whatever goes wrong or ends this process undoes all. Afterwards the container depends on it no more.
package bring
