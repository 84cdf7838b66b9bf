// Package sandbox reviews CRIU's images (package trust) in a process that may do nothing else, so that a fault in a decoder is a refusal.
//
// The process is this program once more, with [Command] as its only argument, which makes it [Main]. It gets two descriptors: a socket to this process, and a
// file in memory, for what the review reads of the images, which is sealed when they are in it. Before it reads either, it has
//   - an empty, read-only root directory, and no network, processes, names or queues of the host's (namespaces);
//   - a user and a group that nobody else has, no capability, and no_new_privs;
//   - limits: of memory (512 MiB), threads, descriptors and processor time, and no file that it may make longer;
//   - a filter of system calls (see calls) that has it killed for any other: it can open, make, connect to and execute nothing.
//
// What the review wants to know of the host it asks this process: whether some file of /proc is there, of which kind a file of the container's is, and the next bytes of
// an image of a file system in memory, which are too many to hand over. It says what it has found in messages whose number and length are bounded. Where it ends without having said that it is
// through, takes too long, or says what it cannot mean, the images are refused, by the rule "sandbox".
//
// There is no review without it, and no restore without a review: where the kernel lacks what this takes, which Linux 5.6 has if it was built with namespaces and
// seccomp, or this process may not make namespaces, the error says what is missing.
//
// A decoder that an image has taken over can still say that there is nothing to refuse. What the images then have CRIU do meets what does not rest on the review:
// CRIU's mount namespace, and the comparison of what was restored with the specification.
package sandbox
