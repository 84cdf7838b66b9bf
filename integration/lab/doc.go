// Package lab starts hosts and registries on one machine for tests, the demo and experiments.
//
// A host is a containerd with network, mount and cgroup namespaces of its own, so that two hosts can hold a
// container of the same name at the same time as two machines would: each has its own /run (and with it runc's and
// the shims' state), its own root of the cgroup hierarchy and its own address on the lab's bridge. Process ids are
// those of the machine, so a test reads /proc/PID of a task as it is.
//
// Everything of a lab lies under one numbered directory, one numbered bridge and one numbered cgroup:
//
//	<dir>/<n>/               image.tar, cgroups
//	<dir>/<n>/<host>/        containerd/, opt/, run/ (the host's /run), tmp/, xdg/, cryo/ (CRYO_ROOT), home/, logs/, containerd.log
//	<dir>/<n>/<registry>/    config.yml, data/, registry.log
//
// Killing a lab means killing the members of its cgroup; mounts and network go with the namespaces. A reaper process
// does that when the owner dies without [Lab.Close], and [Open] does it for labs whose owner and reaper are both gone.
package lab
