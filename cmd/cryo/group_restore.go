package main

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/worker"
)

// checkGroup refuses flags that make no sense for a group.
func (f *restoreFlags) checkGroup() error {
	const command = "cryo restore"
	switch {
	case f.name != "":
		return misused(command, "--name is not for a group: write --group NAME=HOST/CONTAINER")
	case f.registry.options.CAFile != "":
		return misused(command, "--tlscacert is not for a group: put the authority into /etc/containerd/certs.d on each host")
	}
	return f.group.parse(command, false)
}

// restoreGroup restores all members of a group, and lets them run at once.
func (a *app) restoreGroup(ctx context.Context, f restoreFlags) error {
	o, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	full, err := store.Normalize(f.ref)
	if err != nil {
		return err
	}
	group, at, err := registry.ReadGroup(ctx, full, o)
	if err != nil {
		return err
	}
	refs, err := membersRefs(full, group, f.group.parsed)
	if err != nil {
		return err
	}
	moved, err := parseAddresses(f.addresses)
	if err != nil {
		return err
	}
	g := &groupRun{app: a, what: "restore", state: newCoordination(restoreSteps, len(f.group.parsed))}
	g.permit = func(step worker.Step) (*worker.Together, error) {
		if step != worker.Placed {
			return nil, nil
		}
		return together(group, g.addresses(), moved)
	}
	f.choices.GPUs, f.choices.Devices = f.gpu.gpus, f.gpu.devices
	err = g.run(ctx, f.group, func(m *runningMember) *groupAsk {
		return &groupAsk{
			Protocol: groupProtocol, Namespace: a.namespace, Registry: passedOn(o), Progress: a.report() != nil,
			Restore: &groupRestore{Ref: refs[m.name], Name: m.container, Choices: f.choices},
		}
	})
	err = g.outcome(err)
	if !g.state.decided {
		return err
	}
	r := g.result(ctx, full, at.String(), err)
	a.printDone(r, func() error {
		for _, m := range r.Members {
			if m.Restore != nil {
				a.line("%s: %s runs", m.Name, m.Restore.Container)
			}
		}
		return nil
	})
	return err
}

// membersRefs returns the snapshot of each member by its name, REPOSITORY@DIGEST. All members of the group are placed.
func membersRefs(full string, group image.Group, places []groupPlace) (map[string]string, error) {
	refs := snapshotsOf(full, group)
	var missing []string
	for _, m := range group.Members {
		if !slices.ContainsFunc(places, func(p groupPlace) bool { return p.name == m.Name }) {
			missing = append(missing, m.Name)
		}
	}
	for _, p := range places {
		if refs[p.name] == "" {
			return nil, misused("cryo restore", "the group has no member %s", p.name)
		}
	}
	if len(missing) > 0 {
		return nil, failure.New(errdefs.ErrInvalidArgument, "write --group NAME=HOST for each", "no host is named for the members %s", strings.Join(missing, ", "))
	}
	return refs, nil
}

// snapshotsOf returns the snapshot of each member of the group full by its name, REPOSITORY@DIGEST.
func snapshotsOf(full string, group image.Group) map[string]string {
	repository := full
	if at := strings.IndexByte(full, '@'); at >= 0 {
		repository = full[:at]
	}
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	refs := map[string]string{}
	for _, m := range group.Members {
		refs[m.Name] = repository + "@" + m.Snapshot.Digest.String()
	}
	return refs
}

// addresses returns those that each member has reported, by its name.
func (g *groupRun) addresses() map[string][]string {
	all := map[string][]string{}
	for _, m := range g.members {
		all[m.name] = m.addresses
	}
	return all
}

// parseAddresses reads the values of --address-map.
func parseAddresses(values []string) (map[string]string, error) {
	all := map[string]string{}
	for _, v := range values {
		old, now, ok := strings.Cut(v, "=")
		one, err := netip.ParseAddr(old)
		other, err2 := netip.ParseAddr(now)
		if !ok || err != nil || err2 != nil || one.Is4() != other.Is4() {
			return nil, misused("cryo restore", "--address-map %q is not OLD=NEW with two addresses of one family", v)
		}
		all[one.String()] = other.String()
	}
	return all, nil
}

// together returns what all members have to know: which addresses they had and have. addresses are those that they have, by the member's name; moved are the user's own pairs, which win.
func together(group image.Group, addresses map[string][]string, moved map[string]string) (*worker.Together, error) {
	t := &worker.Together{Addresses: map[string]string{}}
	for _, old := range group.Members {
		now := addresses[old.Name]
		t.Members = append(t.Members, worker.Member{Name: old.Name, Was: append([]string{}, old.Addresses...), Is: append([]string{}, now...)})
		for was, is := range pairAddresses(old.Addresses, now) {
			if other, taken := t.Addresses[was]; taken && other != is && moved[was] == "" {
				return nil, failure.New(errdefs.ErrFailedPrecondition, "restore members that shared an address on one host, or say what becomes of it with --address-map "+was+"=NEW",
					"members had the address %s together, and would have %s and %s", was, other, is)
			}
			t.Addresses[was] = is
		}
	}
	for was, is := range moved {
		t.Addresses[was] = is
	}
	for was, is := range t.Addresses {
		if was == is {
			delete(t.Addresses, was)
		}
	}
	return t, nil
}

// pairAddresses pairs the addresses that a member had with those that it has, written as 192.0.2.1/24. An address that is still there remains. The others are paired by family in their order.
func pairAddresses(was, is []string) map[string]string {
	pairs := map[string]string{}
	now := addressesIn(is)
	var left []netip.Addr
	for _, old := range addressesIn(was) {
		if i := slices.Index(now, old); i >= 0 {
			pairs[old.String()] = old.String()
			now = slices.Delete(now, i, i+1)
		} else {
			left = append(left, old)
		}
	}
	for _, old := range left {
		if i := slices.IndexFunc(now, func(a netip.Addr) bool { return a.Is4() == old.Is4() }); i >= 0 {
			pairs[old.String()] = now[i].String()
			now = slices.Delete(now, i, i+1)
		}
	}
	return pairs
}

// addressesIn returns the addresses of prefixes, without those of a link alone.
func addressesIn(prefixes []string) (all []netip.Addr) {
	for _, text := range prefixes {
		p, err := netip.ParsePrefix(text)
		if err == nil && !p.Addr().IsLinkLocalUnicast() {
			all = append(all, p.Addr())
		}
	}
	return all
}
