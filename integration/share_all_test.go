package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestStoreShared has a containerd that has nothing know what a host's store has: each blob is one file in both stores, containerd's collection leaves it alone, and removes it with the snapshot. A name that moves takes the
// image along; an image of the user's by that name stays.
func TestStoreShared(t *testing.T) {
	path, before := pushedMarked(t, nil, "count")
	ref := shared.registry.Reference(path)
	h := emptyHost(t, "shares", lab.HostOptions{CryoConfig: "[store]\ncontainerd = \"peers\"\n"})
	ctr := func(args ...string) lab.Result {
		return h.Ctr(t.Context(), append([]string{"-n", "peers"}, args...)...)
	}
	images := func() string { return must(t, ctr("images", "ls")).Stdout }

	must(t, h.Cryo(t.Context(), "pull", ref, "--plain-http"))
	d := inspect(t, h, ref).Digest
	repository, _, _ := strings.Cut(path, ":")
	byDigest := shared.registry.Reference(repository) + "@" + d.String()
	for _, want := range []string{ref + " ", byDigest} {
		if !strings.Contains(images(), want) {
			t.Errorf("containerd has no image %s:\n%s", want, images())
		}
	}
	blobs := []string{}
	entries, err := os.ReadDir(filepath.Join(h.CryoRoot(), "store/blobs/sha256"))
	for _, e := range entries {
		blobs = append(blobs, e.Name())
	}
	if err != nil || len(blobs) < 4 {
		t.Fatalf("the store has %d blobs: %v", len(blobs), err)
	}
	one := func(when string) {
		t.Helper()
		collect(t, h, "peers")
		for _, blob := range blobs {
			own, err := os.Stat(filepath.Join(h.CryoRoot(), "store/blobs/sha256", blob))
			theirs, failed := os.Stat(contentPath(h, blob))
			if err != nil || failed != nil || !os.SameFile(own, theirs) {
				t.Errorf("%s, %s is not one file: %v, %v", when, blob, err, failed)
			}
		}
		if got := digest.FromString(must(t, ctr("content", "get", d.String())).Stdout); got != d {
			t.Errorf("%s, containerd's manifest is %s", when, got)
		}
	}
	one("after the pull")

	// The same again changes nothing; a second name is an image of its own.
	must(t, h.Cryo(t.Context(), "pull", ref, "--plain-http"))
	must(t, h.Cryo(t.Context(), "tag", ref, ref+"-again"))
	if !strings.Contains(images(), ref+"-again ") {
		t.Errorf("containerd does not have the second name:\n%s", images())
	}
	must(t, h.Cryo(t.Context(), "rm", ref))
	if list := images(); strings.Contains(list, ref+" ") || !strings.Contains(list, byDigest) {
		t.Errorf("after one name was removed:\n%s", list)
	}
	one("after one name was removed")
	must(t, h.Cryo(t.Context(), "rm", ref+"-again"))
	if list := images(); strings.Contains(list, path) {
		t.Errorf("after both names were removed:\n%s", list)
	}
	collect(t, h, "peers")
	eventually(t, "containerd has no blob", 10*time.Second, func() bool {
		for _, blob := range blobs {
			if _, err := os.Stat(contentPath(h, blob)); err == nil {
				return false
			}
		}
		return true
	})

	// A container that is restored while its snapshot is pulled shares it when all is there.
	id := name(t)
	cleanup(t, h, id)
	must(t, h.Cryo(t.Context(), "restore", ref, "--name", id, "--plain-http", "--wait"))
	one("after a restore")
	goneOn(t, before, await(t, h, id))
}

// collect has containerd remove what nothing needs.
func collect(t *testing.T, h *lab.Host, namespace string) {
	t.Helper()
	must(t, h.Ctr(t.Context(), "-n", namespace, "leases", "create", "--id", "collect"))
	must(t, h.Ctr(t.Context(), "-n", namespace, "leases", "delete", "--sync", "collect"))
}

// contentPath is where a host's containerd has a blob.
func contentPath(h *lab.Host, encoded string) string {
	return filepath.Join(contentRoot(h), "blobs", "sha256", encoded)
}

// contentRoot is where a host's containerd has its content.
func contentRoot(h *lab.Host) string {
	return filepath.Join(h.Dir, "containerd", "io.containerd.content.v1.content")
}
