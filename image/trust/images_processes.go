package trust

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/creds"
	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/inventory"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// credentials: no thread may have a capability that the specification, as it was granted, does not have.
func (r *imageReviewer) credentials() error {
	return each(r.images, "core-*.img", func(e *criucore.CoreEntry) error {
		if err := r.compare(e.GetThreadCore().GetCreds()); err != nil {
			return err
		}
		return r.thread(e)
	})
}

// grantedBy is the set of capabilities of a specification, by number.
func grantedBy(spec *specs.Spec) map[uint]bool {
	set := map[uint]bool{}
	if spec.Process == nil || spec.Process.Capabilities == nil {
		return set
	}
	c := spec.Process.Capabilities
	known := cap.Known()
	for _, names := range [][]string{c.Bounding, c.Effective, c.Inheritable, c.Permitted, c.Ambient} {
		for _, name := range names {
			if i := slices.Index(known, name); i >= 0 {
				set[uint(i)] = true
			}
		}
	}
	return set
}

func (r *imageReviewer) compare(c *creds.CredsEntry) error {
	const wordBits, words = 32, 4 // twice what linux/capability.h has
	known, granted := cap.Known(), r.granted
	for _, set := range [][]uint32{c.GetCapInh(), c.GetCapPrm(), c.GetCapEff(), c.GetCapBnd(), c.GetCapAmb()} {
		if len(set) > words {
			return fmt.Errorf("a set of %d capabilities", len(set)*wordBits)
		}
		var more []string
		for i, word := range set {
			for bit := range uint(wordBits) {
				n := uint(i)*wordBits + bit
				if word&(1<<bit) == 0 || granted[n] {
					continue
				}
				name := fmt.Sprintf("capability %d", n)
				if n < uint(len(known)) {
					name = known[n]
				}
				more = append(more, name)
			}
		}
		if len(more) > 0 {
			slices.Sort(more)
			r.ask(Capabilities, "%s, which processes hold and the container was not to have", strings.Join(more, ", "))
		}
	}
	return nil
}

// kernelObjects: processes must be in other namespaces than CRIU itself was. The inventory says which those were; a
// process with the same is restored into the host's. Source: CRIU, criu/pstree.c, get_clone_mask.
func (r *imageReviewer) kernelObjects() error {
	inventories, err := read[inventory.InventoryEntry](r.images, "inventory.img")
	if err != nil {
		return err
	}
	trees, err := read[pstree.PstreeEntry](r.images, "pstree.img")
	if err != nil {
		return err
	}
	if len(inventories) != 1 || inventories[0].GetRootIds() == nil || len(trees) == 0 {
		return &DamagedError{File: "inventory.img", Err: errors.New("it does not say in which namespaces the dump was made")}
	}
	if err := r.processes(trees); err != nil {
		return &DamagedError{File: "pstree.img", Err: err}
	}
	outside := inventories[0].GetRootIds()
	root := trees[0].GetPid()
	rootSeen := false
	look := func(ids *criucore.TaskKobjIdsEntry) {
		if id := ids.GetUserNsId(); id != 0 && id != outside.GetUserNsId() && !slices.Contains(r.private(), specs.UserNamespace) {
			r.ask(Namespaces, "a user namespace, which the specification does not have")
		}
		for _, ns := range r.private() {
			if id := namespaceID(ids, ns); id == 0 || id == namespaceID(outside, ns) {
				r.ask(Namespaces, "the host's %s namespace, in which processes are", ns)
			}
		}
	}
	for _, pattern := range []string{"core-*.img", "ids-*.img"} {
		names, err := files(r.images, pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			ids, err := r.identities(name)
			if err != nil {
				return err
			}
			for _, id := range ids {
				look(id)
				rootSeen = rootSeen || name == fmt.Sprintf("core-%d.img", root) || name == fmt.Sprintf("ids-%d.img", root)
			}
		}
	}
	if !rootSeen {
		return &DamagedError{File: fmt.Sprintf("ids-%d.img", root), Err: errors.New("the first process has no namespaces")}
	}
	return nil
}

// nestedRule is the name of the rule of nested.
const nestedRule = "nested-namespaces"

// nested: all processes are in the namespaces of the first one, and there are images of no others. The mounts of a second mount namespace would be made outside of what
// confinement and masks are about, and the rest of the review takes the container for one of each.
func (r *imageReviewer) nested() error {
	trees, err := read[pstree.PstreeEntry](r.images, "pstree.img")
	if err != nil {
		return err
	}
	var first *criucore.TaskKobjIdsEntry
	for _, tree := range trees {
		for _, name := range []string{fmt.Sprintf("core-%d.img", tree.GetPid()), fmt.Sprintf("ids-%d.img", tree.GetPid())} {
			all, err := r.identities(name)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			for _, ids := range all {
				first = cmp.Or(first, ids)
				for _, kind := range namespaceKinds {
					if namespaceID(ids, kind) != namespaceID(first, kind) {
						return &DamagedError{File: name, Err: fmt.Errorf("process %d is in another %s namespace than the container's first process", tree.GetPid(), kind)}
					}
				}
			}
		}
	}
	for _, of := range []struct {
		kind   specs.LinuxNamespaceType
		images string
	}{{specs.MountNamespace, "mountpoints"}, {specs.UTSNamespace, "utsns"}, {specs.IPCNamespace, "ipcns-*"}, {specs.UserNamespace, "userns"}, {specs.PIDNamespace, "pidns"}, {specs.NetworkNamespace, "netns"}, {specs.TimeNamespace, "timens"}} {
		names, err := files(r.images, of.images+"-[0-9]*.img")
		if err != nil {
			return err
		}
		for _, name := range names {
			if !strings.HasSuffix(name, fmt.Sprintf("-%d.img", namespaceID(first, of.kind))) && name != hostsTime {
				return &DamagedError{File: name, Err: fmt.Errorf("a %s namespace, which is not that of the container's first process", of.kind)}
			}
		}
	}
	return nil
}

// hostsTime is the image of clocks of a container that has the host's time namespace. Source: CRIU 4.2, criu/timens.c.
const hostsTime = "timens-0.img"

// namespaceKinds are the kinds of namespaces that CRIU's images know.
var namespaceKinds = []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.UserNamespace,
	specs.CgroupNamespace, specs.TimeNamespace}

// processes wants each to be one, and to have an image: CRIU begins all of the tree before it looks. The threads of one that has ended are any numbers.
func (r *imageReviewer) processes(trees []*pstree.PstreeEntry) error {
	names, err := files(r.images, "core-*.img")
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, name := range names {
		left[name] = true
	}
	for _, tree := range trees {
		name := fmt.Sprintf("core-%d.img", tree.GetPid())
		if !left[name] {
			return fmt.Errorf("process %d has no image of its own", tree.GetPid())
		}
		delete(left, name)
	}
	return nil
}

// identities reads which namespaces a process is in, from either image that may say it.
func (r *imageReviewer) identities(name string) ([]*criucore.TaskKobjIdsEntry, error) {
	if strings.HasPrefix(name, "ids-") {
		return read[criucore.TaskKobjIdsEntry](r.images, name)
	}
	entries, err := read[criucore.CoreEntry](r.images, name)
	if err != nil {
		return nil, err
	}
	var ids []*criucore.TaskKobjIdsEntry
	for _, e := range entries {
		if e.GetIds() != nil {
			ids = append(ids, e.GetIds())
		}
	}
	return ids, nil
}

// private lists the namespaces that the container, by its specification, has for itself or joins by a path that was granted.
func (r *imageReviewer) private() []specs.LinuxNamespaceType {
	var kinds []specs.LinuxNamespaceType
	if r.spec.Linux != nil {
		for _, ns := range r.spec.Linux.Namespaces {
			kinds = append(kinds, ns.Type)
		}
	}
	return kinds
}

func namespaceID(ids *criucore.TaskKobjIdsEntry, kind specs.LinuxNamespaceType) uint32 {
	switch kind {
	case specs.PIDNamespace:
		return ids.GetPidNsId()
	case specs.IPCNamespace:
		return ids.GetIpcNsId()
	case specs.UTSNamespace:
		return ids.GetUtsNsId()
	case specs.MountNamespace:
		return ids.GetMntNsId()
	case specs.NetworkNamespace:
		return ids.GetNetNsId()
	case specs.UserNamespace:
		return ids.GetUserNsId()
	case specs.CgroupNamespace:
		return ids.GetCgroupNsId()
	case specs.TimeNamespace:
		return ids.GetTimeNsId()
	}
	return 0
}
