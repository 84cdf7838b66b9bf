package image

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/format"
)

// GroupType is the artifact type of an index that lists the snapshots of several containers, which were taken in step.
const GroupType = "application/vnd.cryo.group.v1+json"

// Annotations of the index's entries.
const (
	annotationMember    = "io.cryo.group.member"    // the member's name
	annotationAddresses = "io.cryo.group.addresses" // JSON array of the addresses in its network, as 192.0.2.1/24
)

// MaxMembers is how many members a group has at most.
const MaxMembers = 512

// memberName is what a member is called: it becomes the end of a tag.
var memberName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,62}$`)

// Group is an index over the snapshots of containers that stood still together.
type Group struct {
	Created time.Time
	Members []GroupMember
}

// GroupMember is a container of a group.
type GroupMember struct {
	Name      string
	Snapshot  ocispec.Descriptor
	Addresses []string // of its network when it was frozen, but for loopback, as 192.0.2.1/24
}

// ErrNoGroup is the error of a name that stands for anything but a group.
var ErrNoGroup = failure.New(errdefs.ErrInvalidArgument, "restore a single snapshot with cryo restore REF", "it is no group of snapshots")

// NotOne returns the error of a command that needs a single snapshot, where ref names the group.
func (g Group) NotOne(ref string) error {
	const most = 4
	var places []string
	for _, m := range g.Members[:min(most, len(g.Members))] {
		places = append(places, "--group "+m.Name+"=HOST")
	}
	if len(g.Members) > most {
		places = append(places, "...")
	}
	return failure.New(errdefs.ErrInvalidArgument, "restore it with cryo restore "+ref+" "+strings.Join(places, " ")+"; a member by itself is "+ref+"-"+g.Members[0].Name,
		"%s is a group of %d snapshots", ref, len(g.Members))
}

// CheckMemberName refuses a name that no member can have.
func CheckMemberName(name string) error {
	if !memberName.MatchString(name) {
		return failure.New(errdefs.ErrInvalidArgument, "use at most 63 lower-case letters, digits, '-' and '.', such as rank0", "%q is no name of a member", name)
	}
	return nil
}

// Marshal returns the index.
func (g Group) Marshal() ([]byte, error) {
	index := ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, ArtifactType: GroupType,
		Manifests: []ocispec.Descriptor{}, Annotations: map[string]string{ocispec.AnnotationCreated: g.Created.UTC().Format(time.RFC3339)},
	}
	for _, m := range g.Members {
		addresses, err := json.Marshal(append([]string{}, m.Addresses...))
		if err != nil {
			return nil, fmt.Errorf("write the index of a group: %w", err)
		}
		index.Manifests = append(index.Manifests, ocispec.Descriptor{
			MediaType: m.Snapshot.MediaType, Digest: m.Snapshot.Digest, Size: m.Snapshot.Size, ArtifactType: ArtifactType,
			Annotations: map[string]string{annotationMember: m.Name, annotationAddresses: string(addresses), AnnotationArtifactType: ArtifactType},
		})
	}
	data, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("write the index of a group: %w", err)
	}
	return data, nil
}

// ParseGroup reads an index. It comes from a registry, and is checked. An index of another kind is an error of the kind InvalidArgument.
func ParseGroup(data []byte) (g Group, err error) {
	damaged := func(format string, args ...any) (Group, error) {
		return Group{}, failure.New(errdefs.ErrDataLoss, "take the group's snapshots again", "the index of the group is damaged: "+format, args...)
	}
	var index ocispec.Index
	if err := format.ManifestJSON.Unmarshal(data, &index); err != nil {
		return damaged("%w", err)
	}
	if index.ArtifactType != GroupType {
		return g, ErrNoGroup
	}
	if n := len(index.Manifests); n == 0 || n > MaxMembers {
		return damaged("it has %d members", n)
	}
	if g.Created, err = time.Parse(time.RFC3339, index.Annotations[ocispec.AnnotationCreated]); err != nil {
		return damaged("%w", err)
	}
	names := map[string]bool{}
	for _, d := range index.Manifests {
		m := GroupMember{Name: d.Annotations[annotationMember], Snapshot: ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}}
		switch {
		case CheckMemberName(m.Name) != nil, names[m.Name]:
			return damaged("a member is called %q", m.Name)
		case !IsEntry(d), d.MediaType != ocispec.MediaTypeImageManifest, d.Digest.Validate() != nil:
			return damaged("the member %s is no snapshot", m.Name)
		}
		if err := json.Unmarshal([]byte(d.Annotations[annotationAddresses]), &m.Addresses); err != nil {
			return damaged("addresses of %s: %w", m.Name, err)
		}
		names[m.Name] = true
		g.Members = append(g.Members, m)
	}
	return g, nil
}
