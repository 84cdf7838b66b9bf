package store_test

import (
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
)

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:` + strings.Repeat("a", 64) + `","size":3}]}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":null}{}`))
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:../..","size":-1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := store.ParseIndex(data)
		if err != nil {
			return
		}
		for _, d := range i.Manifests {
			if d.Size < 0 || d.Size > store.MaxBlob || d.Digest.Algorithm() != digest.SHA256 || len(d.Digest.Encoded()) != 64 || strings.ContainsAny(d.Digest.Encoded(), "/.") {
				t.Errorf("accepted %v", d)
			}
		}
	})
}

// FuzzNormalize compares with the package that Docker and containerd parse references with.
func FuzzNormalize(f *testing.F) {
	for _, s := range []string{"app", "a/b:c", "h:5000/a@sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("0", 64), "", "a:b@c", "[::1]:5000/x",
		"docker.io/localhost/a:b", "docker.io/library/sha256:" + strings.Repeat("0", 64), "docker.io/library/" + strings.Repeat("0", 64),
		"index.docker.io/app", "docker.io/app", "localhost/a", "Registry/a", "a/B", "A", "x.y_z/a", "h:5000/a/b-c__d.e_f--g:T.1-x", "h:5000", "a//b", "/a", "a/", "a:", "a@", ":t",
		"a:" + strings.Repeat("t", 129), strings.Repeat("n", 255), "h.x/" + strings.Repeat("n", 256), "a:t@sha256:" + strings.Repeat("0", 64), "a@sha512:" + strings.Repeat("0", 128),
		"a@sha256:" + strings.Repeat("A", 64), "a@sha256:" + strings.Repeat("0", 63), strings.Repeat("a", 64), "h.x/" + strings.Repeat("a", 64), "[::1]/a", "[::1%25x]/a", "é/a", "a\n", "-a", "a-", "a.-b",
		"docker.io/library/a/b", "library/a", "docker.io/library/library/a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, ref string) {
		full, err := store.Normalize(ref)
		if _, none := digest.Parse(ref); none != nil && len(ref) <= 512 {
			named, theirs := reference.ParseDockerRef(ref)
			canonical, ok := named.(reference.Canonical)
			switch other := theirs != nil || ok && canonical.Digest().Algorithm() != digest.SHA256; {
			case other != (err != nil):
				t.Errorf("%q: %v, and the other says %v", ref, err, theirs)
			case err == nil && full != named.String():
				t.Errorf("%q becomes %q, and by the other %q", ref, full, named)
			case err == nil:
				short := reference.FamiliarString(named)
				if again, err := store.Normalize(short); err != nil || again != full {
					short = full // it would name something else
				}
				if got := store.Familiar(full); got != short {
					t.Errorf("%q is shown as %q, and by the other as %q", full, got, short)
				}
			}
		}
		if err != nil {
			return
		}
		again, err := store.Normalize(full)
		if err != nil || again != full {
			t.Errorf("%q becomes %q becomes %q, %v", ref, full, again, err)
		}
		if short, err := store.Normalize(store.Familiar(full)); err != nil || short != full {
			t.Errorf("%q is shown as %q, which is %q, %v", full, store.Familiar(full), short, err)
		}
	})
}

func FuzzParseSnapshot(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"artifactType":"application/vnd.cryo.snapshot.v1","config":{"digest":"sha256:` + strings.Repeat("a", 64) + `","size":3},"layers":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))}
		m, err := store.ParseSnapshot("x", d, data)
		if err != nil {
			return
		}
		for _, l := range append(m.Layers, m.Config) {
			if l.Size < 0 || l.Size > store.MaxBlob || l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 {
				t.Errorf("accepted %v", l)
			}
		}
	})
}

func FuzzParseRunnable(f *testing.F) {
	entry := `{"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.cryo.snapshot.v1","digest":"sha256:` + strings.Repeat("a", 64) + `","size":3}`
	for _, entries := range []string{entry, entry + "," + entry, "", `{"digest":"sha256:` + strings.Repeat("b", 64) + `","size":-1},` + entry} {
		f.Add([]byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[` + entries + `]}`))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}
		snapshot, entries, err := store.ParseRunnable("x", d, data)
		if err != nil {
			if failure.Hint(err) == "" {
				t.Errorf("the error %v has no hint", err)
			}
			return
		}
		found := 0
		for _, e := range entries {
			if e.Size < 0 || e.Size > store.MaxBlob || e.Digest.Validate() != nil || e.Digest.Algorithm() != digest.SHA256 {
				t.Errorf("accepted %v", e)
			}
			if e.Digest == snapshot.Digest && image.IsEntry(e) {
				found++
			}
		}
		if found != 1 || snapshot.MediaType != ocispec.MediaTypeImageManifest || snapshot.Size > store.MaxManifest {
			t.Errorf("found %v in %v", snapshot, entries)
		}
	})
}
