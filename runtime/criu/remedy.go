package criu

import "strings"

// remedies are what can be done about what CRIU says. The words are CRIU's own, of versions 4.1 and 4.2.
var remedies = []struct{ words, hint string }{
	{"consider using --tcp-established", "the container has established TCP connections: keep them with --tcp-established"},
	{"Unsupported proto 262", "the container has Multipath TCP sockets, which CRIU does not know, and programs in Go 1.24 and later listen with them: start it with GODEBUG=multipathtcp=0 in its environment, or with sysctl net.mptcp.enabled=0"},
	{"Can't get 1:16 opt", "CRIU before 4.2 cannot dump network sockets on Linux 6.16 and later: install a newer one (contrib/criu/install does on Debian)"},
	{"try --file-locks", "the container holds locks on files: keep them with --file-locks"},
	{"External socket is used", "the container is connected to a unix socket outside of it: close that connection, or allow it with --ext-unix-sk if the other host has the socket too"},
	{"Can't dump ghost file", "the container holds a large deleted file open: raise ghost-limit of [dump] in /etc/cryo/config.toml, which the shim reads"},
	{"Can't retrieve FDs from socket", "the container has an io_uring, most likely, which CRIU does not know: have its program do without, such as Node.js with UV_USE_IO_URING=0 in its environment"},
	{"its name is gone, and the file has another one", "have the program close the file, or open it by its new name"},
	{"Can't get rlimit", "CRIU reads the limits of other users' processes only with CAP_SYS_RESOURCE: give it to containerd"},
	{"Address already in use", "an address that the container listens on is taken on this host, as by another container in the host's network: ss -lntup shows by whom. End that one first"},
	{"has bad size", "a mounted file is not as it was: copy the mount's files as they were when the snapshot was taken"},
	{"(rule unpacked-size)", "the snapshot cannot be trusted: get it again from where it was taken"},
	{"/dev/kfd", "install CRIU with its plugin for AMD GPUs (criu-amdgpu-plugin, or make amdgpu_plugin in CRIU's sources), which containers with /dev/kfd need"},
	{"has bad mode", "a mounted file is not as it was: copy the mount's files with their permissions"},
}

// Remedy gives a hint on what CRIU said; empty if none is known.
func Remedy(text string) string {
	for _, r := range remedies {
		if strings.Contains(text, r.words) {
			return r.hint
		}
	}
	return ""
}
