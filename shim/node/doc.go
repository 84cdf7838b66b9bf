// Package node is the service of one machine, cryo node: it keeps snapshots prewarmed that a file lists, counts checkpoints, what containers are restored and which are not, and
// tells Kubernetes what is ready and what was restored.
//
//	file ────── warmer ── package restore ── local store, registry
//	               │ what is ready
//	containerd ─ events ──┬── metrics ── /metrics, /healthz
//	                      ├── cluster ── labels of the node, events of pods
//	                      └── Options.Groups ── checkpoints of groups of pods (cmd/cryo)
//
// Everything it knows is in the local store, in containerd and in the file. Of its own it keeps one record, of what it has prewarmed, written before it does so: what is not
// in the record it never removes. So it may be killed at any time.
//
// # Installer
//
// This part puts cryo onto a machine whose root directory is mounted somewhere, as in the init container of a DaemonSet: programs below /opt/cryo, and a file that
// makes them a runtime of containerd's. It restarts containerd only where it is told to.
package node
