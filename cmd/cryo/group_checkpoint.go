package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/save"
	"github.com/cryo-project/cryo/shim/worker"
)

// groupResult is what became of a group.
type groupResult struct {
	Reference string              `json:"reference"`
	Digest    string              `json:"digest"` // of the index
	Members   []groupMemberResult `json:"members"`
	Error     *errorReport        `json:"error,omitempty"` // of a member, after the group was decided
}

// groupMemberResult is what became of a member.
type groupMemberResult struct {
	Name       string          `json:"name"`
	Host       string          `json:"host"` // empty: the coordinator's
	Checkpoint *save.Result    `json:"checkpoint,omitempty"`
	Restore    *restore.Result `json:"restore,omitempty"`
	Error      *failure.Error  `json:"error,omitempty"`
}

// register adds the flags of a group.
func (f *groupFlags) register(cmd *cobra.Command, place string) {
	flags := cmd.Flags()
	flags.StringArrayVar(&f.members, "group", nil, "a member of a group, as NAME="+place+"; HOST is reached by ssh, and is this host if it is empty")
	flags.StringVar(&f.file, "group-file", "", "file with the members of a group, one a line")
	flags.StringVar(&f.ssh, "ssh", environment("CRYO_SSH", ""), "command that reaches the hosts of a group, such as \"ssh -F FILE\" (CRYO_SSH)")
	flags.StringVar(&f.remote, "remote-cryo", "", "the cryo program on the hosts of a group (default: cryo)")
}

// ownGroup has a program be in a process group of its own, so that Ctrl-C on a terminal does not reach it.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// checkGroup refuses flags that make no sense for a group.
func (f *checkpointFlags) checkGroup() error {
	const command = "cryo checkpoint"
	switch {
	case f.Remove:
		return misused(command, "--rm is not for a group: remove the containers of its members when they have ended")
	case f.Verify:
		return misused(command, "--verify is not for a group: its connections cannot be tried")
	case f.KeyFile != "":
		return misused(command, "--sign-key is not for a group: sign its members' snapshots with cryo sign")
	case f.registry.options.CAFile != "":
		return misused(command, "--tlscacert is not for a group: put the authority into /etc/containerd/certs.d on each host")
	}
	return f.group.parse(command, true)
}

// memberRef is what a member's own snapshot is called.
func memberRef(full, name string) (string, error) {
	colon := strings.LastIndexByte(full, ':')
	if colon < strings.LastIndexByte(full, '/') || strings.Contains(full, "@") || !strings.Contains(full, "/") {
		return "", failure.New(errdefs.ErrInvalidArgument, "write HOST/REPOSITORY:TAG", "a group is published in a registry, under a tag, not as %s", full)
	}
	const most = 128 // characters of a tag; OCI distribution specification
	if len(full)-colon-1+1+len(name) > most {
		return "", failure.New(errdefs.ErrInvalidArgument, "use a shorter tag", "the tag %s-%s has more than %d characters", full[colon+1:], name, most)
	}
	return full + "-" + name, nil
}

// checkpointGroup takes snapshots of all members in step, and publishes the index that lists them.
func (a *app) checkpointGroup(ctx context.Context, f checkpointFlags) error {
	o, err := f.registry.resolve(ctx, a)
	if err != nil {
		return err
	}
	full, err := store.Normalize(f.Ref)
	if err != nil {
		return err
	}
	for _, p := range f.group.parsed {
		if _, err := memberRef(full, p.name); err != nil {
			return err
		}
	}
	a.warnHub(f.Ref)
	g := &groupRun{app: a, what: "checkpoint", state: newCoordination(checkpointSteps, len(f.group.parsed))}
	g.publishes(full, o)
	err = g.run(ctx, f.group, func(m *runningMember) *groupAsk {
		ref, _ := memberRef(full, m.name) // looked at before
		return &groupAsk{
			Protocol: groupProtocol, Namespace: a.namespace, Registry: passedOn(o), Progress: a.report() != nil,
			Checkpoint: &groupCheckpoint{
				Container: m.container, Ref: ref, LeaveRunning: f.LeaveRunning, FileLocks: f.FileLocks, ExternalUnixSockets: f.ExternalUnixSockets, ReadyTimeout: f.ReadyTimeout, Parent: f.Parent,
				Compression: f.Compression, SegmentSize: f.SegmentSize, GPUTimeout: f.GPUTimeout, GPUEngine: f.GPUEngine, Force: f.Force,
			},
		}
	})
	err = g.outcome(err)
	if !g.state.decided {
		return err
	}
	r := g.result(ctx, full, digest.FromBytes(g.written).String(), err)
	a.printDone(r, func() error {
		a.line("%s", r.Digest)
		for _, m := range r.Members {
			if c := m.Checkpoint; c != nil {
				a.line("%s: %s of memory in %s, frozen %s", m.Name, config.Size(c.Memory), config.Size(c.Size), seconds(c.Freeze))
			}
		}
		a.line("published as %s; to restore it: cryo restore %s --group NAME=HOST ...", f.Ref, f.Ref)
		return nil
	})
	return err
}

// publishes has the members of a checkpoint be sent the addresses of all, and the index be published as full.
func (g *groupRun) publishes(full string, o registry.Options) {
	g.permit = func(step worker.Step) (*worker.Together, error) {
		if step != worker.Admitted {
			return nil, nil
		}
		t := &worker.Together{}
		for _, m := range g.members {
			t.Members = append(t.Members, worker.Member{Name: m.name, Was: append([]string{}, m.addresses...), Is: []string{}})
		}
		return t, nil
	}
	g.index = func() (_ *groupIndex, err error) {
		if g.written, err = g.write(); err != nil {
			return nil, err
		}
		return &groupIndex{full, digest.FromBytes(g.written)}, nil
	}
	g.publish = func(ctx context.Context) error {
		_, err := registry.PublishGroup(ctx, full, g.written, o)
		return err
	}
}

// write returns the group's index. It lists the snapshot that each member has pushed.
func (g *groupRun) write() ([]byte, error) {
	group := image.Group{Created: time.Now()}
	for _, m := range g.members {
		if m.at.Digest.Validate() != nil || m.at.Manifest <= 0 {
			return nil, fmt.Errorf("%s has not said which snapshot it has sent: %w", m, errdefs.ErrInternal)
		}
		group.Members = append(group.Members, image.GroupMember{
			Name: m.name, Addresses: m.addresses, Snapshot: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: m.at.Digest, Size: m.at.Manifest},
		})
	}
	return group.Marshal()
}

// result returns what became of the group.
func (g *groupRun) result(ctx context.Context, ref, index string, err error) groupResult {
	r := groupResult{Reference: ref, Digest: index, Error: g.errorReport(ctx, err)}
	for _, m := range g.members {
		of := groupMemberResult{Name: m.name, Host: m.host}
		switch {
		case m.last == nil:
			of.Error = failure.Of(m.words)
		case m.last.Failed != nil:
			of.Error = m.last.Failed
		case g.what == "checkpoint":
			_ = json.Unmarshal(m.last.Done, &of.Checkpoint) // of the same release
		default:
			_ = json.Unmarshal(m.last.Done, &of.Restore)
		}
		r.Members = append(r.Members, of)
	}
	return r
}
