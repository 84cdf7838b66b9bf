package criu

import "strings"

// remedies are what can be done about what CRIU says, and the rule by which it refuses that. The words are CRIU's own, of versions 4.1 and 4.2.
var remedies = []struct{ words, rule, hint string }{
	{"consider using --tcp-established", "tcp-established", "the container has established TCP connections: keep them with --tcp-established"},
	{"Unsupported proto 262", "multipath-tcp", "the container has Multipath TCP sockets, which CRIU does not know, and programs in Go 1.24 and later listen with them: start it with GODEBUG=multipathtcp=0 in its environment, or with sysctl net.mptcp.enabled=0"},
	{"Can't get 1:16 opt", "criu-version", "CRIU before 4.2 cannot dump network sockets on Linux 6.16 and later: install a newer one (contrib/criu/install does on Debian)"},
	{"try --file-locks", "file-locks", "the container holds locks on files: keep them with --file-locks"},
	{"External socket is used", "external-socket", "the container is connected to a unix socket outside of it: close that connection, or allow it with --ext-unix-sk if the other host has the socket too"},
	{"Can't dump ghost file", "ghost-limit", "the container holds a large deleted file open: raise ghost-limit of [dump] in /etc/cryo/config.toml, which the shim reads"},
	{"Can't retrieve FDs from socket", "io-uring", "the container has an io_uring, most likely, which CRIU does not know: start it with the annotation io.cryo.io-uring=refuse, and its program does without"},
	{"Unknown shit", "unknown-descriptor", unknownDescriptor},
	{" of that type [", "unknown-descriptor", unknownDescriptor},
	{"Can't dump that handle", "inotify", "a process watches files (inotify, fanotify) in a directory where CRIU does not look for them: add it to inotify-paths under [dump] in /etc/cryo/config.toml, which the shim reads, by its path in the container"},
	{"its name is gone, and the file has another one", "linked-file", "have the program close the file, or open it by its new name"},
	{"Can't get rlimit", "rlimit", "CRIU reads the limits of other users' processes only with CAP_SYS_RESOURCE: give it to containerd"},
	{"Address already in use", "", "an address that the container listens on is taken on this host, as by another container in the host's network: ss -lntup shows by whom. End that one first"},
	{"has bad size", "", "a mounted file is not as it was: copy the mount's files as they were when the snapshot was taken"},
	{"(rule unpacked-size)", "", "the snapshot cannot be trusted: get it again from where it was taken"},
	{"/dev/kfd", "amd-gpu", "cryo does not save AMD GPUs: have the container's program close them first"},
	{"has bad mode", "", "a mounted file is not as it was: copy the mount's files with their permissions"},
}

const unknownDescriptor = "the container has a descriptor open of a kind that CRIU does not know, which the message names: have the program close it before the checkpoint, or do without"

// Remedy returns a hint on what CRIU said, and the rule by which it refused; both are empty if none is known.
func Remedy(text string) (rule, hint string) {
	for _, r := range remedies {
		if strings.Contains(text, r.words) {
			return r.rule, r.hint
		}
	}
	return "", ""
}
