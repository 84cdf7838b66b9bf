// Package trust decides what a container may get because a snapshot says so.
//
// The author of a snapshot wrote its runtime specification, so the specification is a request, not an order. What
// a plain `ctr run` or `nerdctl run` gives to a container is granted; whatever reaches further into the host, such as a
// bind mount, a device, a capability or a namespace of the host, must be allowed by the person who restores. Hooks,
// which are programs of the host, are dropped in any case, and so are annotations and labels that steer the host.
//
// The specification is half of it: CRIU's images hold credentials and mounts too. [ReviewImages] compares them with what
// the specification was granted.
//
// # The process that reviews
//
// This part reviews CRIU's images in a process that may do nothing else, so that a fault in a decoder is a refusal.
//
// The process is the program cryo-guard with the argument [ReviewCommand], which makes it [ReviewMain]. It gets two descriptors: a socket to this process, and a
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
//
// # Mounts
//
// This part knows what every container has, and how runc reads the options of mounts. The review of a snapshot goes by it, the comparison of what was restored, and the making of device nodes.
//
// # Files of the kernel
//
// This part knows files of /proc and /sys that a restored process may have open.
//
// CRIU opens files as root. For many files of the kernel that decides for ever what is read and written by the descriptor: the kernel's log, its addresses, frame
// numbers, the memory of a process. So only files are allowed that show no more to root than to others, or that the kernel asks about again at each read.
//
// # Patterns
//
// This part compiles regular expressions when they are first asked for. A restore starts cryo-guard half a dozen times, as a wrapper of CRIU and as tar among others, and most
// of these processes match nothing.
package trust
