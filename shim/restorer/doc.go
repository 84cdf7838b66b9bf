// Package restorer is the shim's side of the restore process: the cryo program beside the shim's, which finds a snapshot, prepares it for a container, and
// pulls what is missing of it while the container runs. What the process does is package shim/restore, which the shim does not link: see shim/README.md.
package restorer
