package criu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
)

// RuleNested refuses processes with namespaces of their own within the container: the review of a snapshot's images does (image/trust).
const RuleNested = "nested-namespaces"

// ProcessTree lists a process and its descendants, which are what CRIU dumps of a container by its first process.
func ProcessTree(first int) []int {
	all := []int{first}
	for _, child := range ChildProcesses(first) {
		all = append(all, ProcessTree(child)...)
	}
	return all
}

// ChildProcesses lists those of all threads of a process. Source: proc_tid_children(5), which CRIU needs as well.
func ChildProcesses(pid int) (all []int) {
	lists, _ := filepath.Glob(dir(pid, "task", "*", "children")) // the pattern is well formed
	for _, list := range lists {
		text, _ := os.ReadFile(list) // none of a thread that has ended
		for _, field := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// nested refuses a process whose mount or network namespace is not that of the first one. CRIU 4.2 dumps no others that are nested, and refuses them.
func nested(first, pid int) *failure.Error {
	for kind, what := range map[string]string{"mnt": "mount", "net": "network"} {
		own, err := os.Readlink(dir(pid, "ns", kind))
		if err != nil { // it has ended
			return nil
		}
		if of, err := os.Readlink(dir(first, "ns", kind)); err == nil && own != of {
			return failure.New(errdefs.ErrFailedPrecondition, "have it leave the namespace, or end it, before the checkpoint",
				RuleNested+": %s has a %s namespace of its own, which a restore would not make", name(pid), what).By(RuleNested)
		}
	}
	return nil
}
