// Package registry sends snapshots to OCI registries and fetches them.
//
// A [Pusher] sends a snapshot while it is being made, a [Puller] fetches one in two steps, so that one can look at it before its
// memory comes, and [Ranges] read parts of blobs.
//
// Blobs are sent whole (POST and PUT), several at once, what the registry has already is skipped; the manifest comes after
// all blobs and the tag last. Interrupted downloads are resumed where they stopped, by this process or a later one, and every
// byte is verified before it enters the local store.
//
// Requests that fail for a reason that may pass (5xx, 429, cut and stalled connections) are repeated a bounded number of times
// with growing pauses.
//
// Decision: pulls and pushes do not use oras-go's CopyGraph, which copies a known graph by one Fetch into one Push for each blob. A push starts before the manifest exists, and opens a
// blob again for each attempt. A pull appends to an earlier attempt, fetches parts in the order in which a restored container needs them, and replaces damaged blobs of a snapshot whose
// manifest is in the store. CopyGraph would be a second way for the few copies that need none of this.
//
// # Archives and layouts
//
// This part moves snapshots as files: OCI image layout directories, written oci:DIR[:TAG], and tar archives of them,
// written oci-archive:FILE[:TAG], as skopeo names both.
package registry
