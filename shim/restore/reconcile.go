package restore

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/config"
)

// The rules by which a container's own specification is compared with that of the snapshot.
const (
	ruleMounts     = "mounts"
	ruleNamespaces = "namespaces"
	rulePIDs       = "pid-namespace"
	ruleTerminal   = "terminal"
	ruleUser       = "user"
	ruleUserMaps   = "user-mappings"
	ruleReadonly   = "root-readonly"
	ruleSeccomp    = "seccomp-profile"
	ruleBaseImage  = "base-image"
	ruleGPUNodes   = "gpu-nodes"
)

// reconcile compares the specification of the container that is restored with that of the snapshot's container. What differs must be what a restore can make
// so: sources of mounts, limits and names are the container's own, while CRIU makes mounts, namespaces and processes as they were. byGPUs is what [editsOf] gives.
func reconcile(was, is *specs.Spec, byGPUs gpu.CDIEdits) (all []host.FitFinding) {
	found := func(rule, hint, format string, args ...any) {
		all = append(all, host.FitFinding{Rule: rule, Fatal: true, Problem: fmt.Sprintf(format, args...), Hint: hint})
	}
	reconcileMounts(was, is, byGPUs, found)
	reconcileGPUNodes(is, found)
	reconcileNamespaces(was, is, found)
	reconcilePIDs(is, found)
	process := func(s *specs.Spec) specs.Process {
		if s.Process == nil {
			return specs.Process{}
		}
		return *s.Process
	}
	a, b := process(was), process(is)
	if a.Terminal != b.Terminal {
		found(ruleTerminal, "create the container as the snapshot's was, with a terminal or without", "the snapshot's container had a terminal: %v, and this one has: %v", a.Terminal, b.Terminal)
	}
	groups := func(p specs.Process) []uint32 {
		own := slices.DeleteFunc(slices.Clone(p.User.AdditionalGids), func(g uint32) bool { return slices.Contains(byGPUs.GIDs, g) })
		return slices.Compact(slices.Sorted(slices.Values(own)))
	}
	if a.User.UID != b.User.UID || a.User.GID != b.User.GID || !slices.Equal(groups(a), groups(b)) {
		found(ruleUser, "create the container for the same user", "the snapshot's container ran as user %d:%d %v, and this one shall run as %d:%d %v",
			a.User.UID, a.User.GID, a.User.AdditionalGids, b.User.UID, b.User.GID, b.User.AdditionalGids)
	}
	readonly := func(s *specs.Spec) bool { return s.Root != nil && s.Root.Readonly }
	if readonly(was) != readonly(is) {
		found(ruleReadonly, "create the container as the snapshot's was", "the snapshot's container had a read-only root file system: %v, and this one has: %v", readonly(was), readonly(is))
	}
	seccomp := func(s *specs.Spec) *specs.LinuxSeccomp {
		if s.Linux == nil {
			return nil
		}
		return s.Linux.Seccomp
	}
	if !reflect.DeepEqual(seccomp(was), seccomp(is)) {
		found(ruleSeccomp, "create the container with the seccomp profile that the snapshot's had", "the snapshot's container had another filter of system calls (seccomp), which its processes keep")
	}
	maps := func(s *specs.Spec) (uids, gids []specs.LinuxIDMapping) {
		if s.Linux == nil {
			return nil, nil
		}
		return s.Linux.UIDMappings, s.Linux.GIDMappings
	}
	uids, gids := maps(was)
	if u, g := maps(is); !slices.Equal(uids, u) || !slices.Equal(gids, g) {
		found(ruleUserMaps, "create the container with the same mappings of ids; a pod with hostUsers: false has others each time, so leave that out", "the snapshot's container had other mappings of user ids or group ids than this one")
	}
	return all
}

// find is told of a difference.
type find func(rule, hint, format string, args ...any)

// editsOf returns what CDI devices have put into a specification, by this host's CDI files, with where those of the snapshot g had mounted files: the snapshot's specification
// is without these, and the rule gpu-libraries compares them. g may be nil.
func editsOf(c config.GPU, g *image.GPU, spec *specs.Spec) (e gpu.CDIEdits, err error) {
	if g == nil {
		return e, nil
	}
	host := gpu.OpenCDI(c.CDI...)
	if e, err = host.Edits(host.Find(spec)); err != nil {
		return e, err
	}
	for _, at := range g.Mounts {
		e.Mounts = append(e.Mounts, specs.Mount{Destination: at})
	}
	return e, nil
}

// reconcileGPUNodes refuses nodes of GPUs by another name than on the host: the name says which GPU the container has.
func reconcileGPUNodes(is *specs.Spec, found find) {
	const hint = "give the container the nodes of its GPUs by the names that they have on this host"
	if is.Linux == nil {
		return
	}
	for _, d := range is.Linux.Devices {
		if n, ok := gpuNumber(d.Path); ok && n != d.Minor {
			found(ruleGPUNodes, hint, "the container's %s is the device %d:%d, the node of another GPU", d.Path, d.Major, d.Minor)
		}
	}
	for _, m := range is.Mounts {
		if _, ok := gpuNumber(m.Destination); ok && path.Clean(m.Source) != path.Clean(m.Destination) {
			found(ruleGPUNodes, hint, "the container's %s is %s of this host", m.Destination, m.Source)
		}
	}
}

// gpuNumber parses N of the device node /dev/nvidiaN. On the host, N is also the node's minor number.
func gpuNumber(node string) (int64, bool) {
	number, ok := strings.CutPrefix(path.Clean(node), "/dev/nvidia")
	n, err := strconv.ParseInt(number, 10, 64)
	return n, ok && err == nil
}

// reconcileMounts compares mounts by their destinations. Their sources may differ, and what GPUs bring need not be in both.
func reconcileMounts(was, is *specs.Spec, byGPUs gpu.CDIEdits, found find) {
	had, has := mountsOf(was), mountsOf(is)
	for _, at := range slices.Sorted(maps.Keys(had)) {
		m, ok := has[at]
		switch {
		case !ok:
			found(ruleMounts, "give the container a mount at "+at, "the snapshot's container had a mount at %s, and this one has none", at)
		case m != had[at]:
			found(ruleMounts, "create the container with the mounts that the snapshot's had; only their sources may differ", "the snapshot's container had %s at %s, and this one has %s", had[at], at, m)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(has)) {
		_, ok := had[at]
		if !ok && !slices.ContainsFunc(byGPUs.Mounts, func(m specs.Mount) bool { return path.Clean(m.Destination) == at }) {
			found(ruleMounts, "leave the mount at "+at+" out, or take a snapshot of a container that has it", "this container has a mount at %s, which the snapshot's did not have", at)
		}
	}
}

// mounting is what of a mount a restore keeps.
type mounting struct {
	kind     string // of file system; "bind" for all bind mounts
	readonly bool
}

func (m mounting) String() string {
	if m.readonly {
		return "a read-only mount of the type " + m.kind
	}
	return "a mount of the type " + m.kind
}

// mountsOf are those of a specification, by their destinations; of several at one, the last counts, which covers the others.
func mountsOf(s *specs.Spec) map[string]mounting {
	all := map[string]mounting{}
	for _, m := range s.Mounts {
		kind := m.Type
		if trust.IsBindMount(m) {
			kind = "bind"
		}
		readonly := slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro")
		all[path.Clean(m.Destination)] = mounting{kind, readonly}
	}
	return all
}

func reconcileNamespaces(was, is *specs.Spec, found find) {
	had, has := namespacesOf(was), namespacesOf(is)
	for _, t := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.UserNamespace, specs.CgroupNamespace, specs.TimeNamespace,
	} {
		if t == specs.PIDNamespace && has[t] != ownNamespace {
			continue // see reconcilePIDs
		}
		if had[t] != has[t] {
			found(ruleNamespaces, "create the container with the namespaces that the snapshot's had", "the snapshot's container had %s namespace of the type %s, and this one has %s", had[t], t, has[t])
		}
	}
}

// reconcilePIDs refuses a container that shares process ids: CRIU makes processes with the ids that they had, which others have there.
func reconcilePIDs(is *specs.Spec, found find) {
	switch namespacesOf(is)[specs.PIDNamespace] {
	case givenNamespace:
		found(rulePIDs, "leave out shareProcessNamespace", "the container is in another one's PID namespace, where its processes cannot have the ids that they had")
	case hostNamespace:
		found(rulePIDs, "leave out hostPID", "the container is in the host's PID namespace, where its processes cannot have the ids that they had")
	}
}

// namespacing says what namespace of a type a container has.
type namespacing int

const (
	hostNamespace namespacing = iota
	ownNamespace
	givenNamespace // by its path
)

func (n namespacing) String() string {
	return [...]string{"the host's", "its own", "a given"}[n]
}

func namespacesOf(s *specs.Spec) map[specs.LinuxNamespaceType]namespacing {
	all := map[specs.LinuxNamespaceType]namespacing{}
	if s.Linux == nil {
		return all
	}
	for _, n := range s.Linux.Namespaces {
		all[n.Type] = ownNamespace
		if n.Path != "" {
			all[n.Type] = givenNamespace
		}
	}
	return all
}
