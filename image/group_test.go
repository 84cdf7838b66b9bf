package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
)

func groupOf(names ...string) Group {
	g := Group{Created: time.Unix(1_700_000_000, 0).UTC()}
	for i, name := range names {
		g.Members = append(g.Members, GroupMember{
			Name: name, Addresses: []string{fmt.Sprintf("10.0.0.%d/24", i)}, Snapshot: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(name), Size: 100},
		})
	}
	return g
}

func TestGroup(t *testing.T) {
	g := groupOf("rank0", "rank1")
	g.Members[1].Addresses = nil
	data, err := g.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseGroup(data)
	if err != nil {
		t.Fatal(err)
	}
	if !got.Created.Equal(g.Created) || len(got.Members) != 2 || got.Members[0].Name != "rank0" || got.Members[1].Snapshot.Digest != g.Members[1].Snapshot.Digest ||
		!slices.Equal(got.Members[0].Addresses, g.Members[0].Addresses) || len(got.Members[1].Addresses) != 0 {
		t.Errorf("%+v became %+v", g, got)
	}
	one := got.NotOne("r.example/job:1")
	if !errdefs.IsInvalidArgument(one) || !strings.Contains(failure.Hint(one), "--group rank0=HOST --group rank1=HOST; a member by itself is r.example/job:1-rank0") {
		t.Errorf("%v, hint %q", one, failure.Hint(one))
	}
}

// TestGroupHostile has indexes that no coordinator writes.
func TestGroupHostile(t *testing.T) {
	for name, change := range map[string]func(i *ocispec.Index){
		"no members":          func(i *ocispec.Index) { i.Manifests = nil },
		"too many":            func(i *ocispec.Index) { i.Manifests = slices.Repeat(i.Manifests, MaxMembers) },
		"twice":               func(i *ocispec.Index) { i.Manifests = append(i.Manifests, i.Manifests[0]) },
		"no name":             func(i *ocispec.Index) { delete(i.Manifests[0].Annotations, annotationMember) },
		"a path for a name":   func(i *ocispec.Index) { i.Manifests[0].Annotations[annotationMember] = "../x" },
		"an option":           func(i *ocispec.Index) { i.Manifests[0].Annotations[annotationMember] = "-x" },
		"lines":               func(i *ocispec.Index) { i.Manifests[0].Annotations[annotationMember] = "a\nb" },
		"no addresses":        func(i *ocispec.Index) { delete(i.Manifests[0].Annotations, annotationAddresses) },
		"addresses of a kind": func(i *ocispec.Index) { i.Manifests[0].Annotations[annotationAddresses] = `{"a": 1}` },
		"no snapshot":         func(i *ocispec.Index) { i.Manifests[0].ArtifactType = "application/x" },
		"an index":            func(i *ocispec.Index) { i.Manifests[0].MediaType = ocispec.MediaTypeImageIndex },
		"no digest":           func(i *ocispec.Index) { i.Manifests[0].Digest = "sha256:1" },
		"no time":             func(i *ocispec.Index) { i.Annotations = nil },
	} {
		data, err := groupOf("a", "b").Marshal()
		if err != nil {
			t.Fatal(err)
		}
		var i ocispec.Index
		if err := json.Unmarshal(data, &i); err != nil {
			t.Fatal(err)
		}
		change(&i)
		if data, err = json.Marshal(i); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseGroup(data); !errdefs.IsDataLoss(err) || failure.Hint(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseGroup([]byte(`{"artifactType": "x"}`)); !errors.Is(err, ErrNoGroup) {
		t.Errorf("another index: %v", err)
	}
	if _, err := ParseGroup([]byte(`{`)); !errdefs.IsDataLoss(err) {
		t.Errorf("no JSON: %v", err)
	}
}
