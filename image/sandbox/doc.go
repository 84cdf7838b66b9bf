// Package sandbox reviews CRIU's images (package trust) in a process that may do nothing else, so that a fault in a decoder is a refusal.
//
// The process is this program once more, with [Command] as its only argument, which makes it [Main]. It gets two descriptors: a socket to this process, and a
// file in memory, for what the review reads of the images, which is sealed when they are in it. Before it reads either, it has
//   - an empty, read-only root directory, and no network, processes, names or queues of the host's (namespaces);
//   - a user and a group that no other process has, no capability, and no_new_privs;
//   - limits: of memory (512 MiB), threads, descriptors and processor time, and no file that it may make longer;
//   - a filter of system calls (see calls) that has it killed for any other: it can open, make, connect to and execute nothing.
//
// The review asks this process what it has to know of the host: whether some file of /proc is there, of which kind a file of the container's is, and the next bytes of
// an image of a file system in memory, which is too long to hand over. It reports what it has found in messages whose number and length are bounded. If it ends without
// saying that it is done, takes too long, or sends what makes no sense, the images are refused, by the rule "sandbox".
//
// There is no review without the sandbox, and no restore without a review. It needs Linux 5.6 with namespaces and seccomp, and the right to make namespaces; if
// something is missing, the error says what.
//
// A decoder that an image has taken over can still say that there is nothing to refuse. Two other protections do not depend on the review: CRIU's mount namespace,
// and the comparison of the restored processes with the specification.
package sandbox
