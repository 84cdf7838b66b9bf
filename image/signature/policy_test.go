package signature

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
)

func TestPolicy(t *testing.T) {
	ours, ourPub := newKey(t, "P-256")
	team, teamPub := newKey(t, "ed25519")
	foreign, _ := newKey(t, "P-256")
	d, other := digest.FromString("a snapshot"), digest.FromString("another")
	damaged := Attached{Bundle: record.BlobOf(MediaType, []byte("{"))}
	broken := change(t, sign(t, ours, d), func(w *wire) { w.Envelope.Signatures[0].Sig[8] ^= 1 })
	none := []string(nil)
	unread := errors.New("the line is cut")
	prefixes := map[string][]string{
		"registry.example":             {teamPub},
		"registry.example/scratch":     none,
		"registry.example/scratch/not": {ourPub},
		"localhost":                    none,
		"index.docker.io:443/team":     {teamPub},
	}
	for _, test := range []struct {
		name    string
		signed  bool // by default
		require bool
		ref     string
		all     []Attached
		unread  error
		refused Reason // empty: taken
		doubt   Reason // that it is taken with; empty: none
	}{
		{"unsigned", false, false, "docker.io/library/a:1", nil, nil, "", Unsigned},
		{"unsigned, required", false, true, "docker.io/library/a:1", nil, nil, Unsigned, ""},
		{"unsigned, signed by default", true, false, "docker.io/library/a:1", nil, nil, Unsigned, ""},
		{"signed", true, false, "docker.io/library/a:1", []Attached{sign(t, ours, d)}, nil, "", ""},
		{"signed, nothing asked", false, false, "docker.io/library/a:1", []Attached{sign(t, ours, d)}, nil, "", ""},
		{"foreign key", true, false, "docker.io/library/a:1", []Attached{sign(t, foreign, d)}, nil, UntrustedKey, ""},
		{"foreign key, nothing asked", false, false, "docker.io/library/a:1", []Attached{sign(t, foreign, d)}, nil, "", UntrustedKey},
		{"key of another repository", true, false, "docker.io/library/a:1", []Attached{sign(t, team, d)}, nil, UntrustedKey, ""},
		{"moved", true, false, "docker.io/library/a:1", []Attached{sign(t, ours, other)}, nil, OtherDigest, ""},
		{"moved, nothing asked", false, false, "docker.io/library/a:1", []Attached{sign(t, ours, other)}, nil, "", OtherDigest},
		{"damaged", true, false, "docker.io/library/a:1", []Attached{damaged}, nil, Damaged, ""},
		{"broken", true, false, "docker.io/library/a:1", []Attached{broken}, nil, Damaged, ""},
		{"one of many", true, false, "docker.io/library/a:1", []Attached{damaged, broken, sign(t, foreign, d), sign(t, ours, other), sign(t, ours, d)}, nil, "", ""},
		{"the most telling of many", true, false, "docker.io/library/a:1", []Attached{damaged, sign(t, ours, other), sign(t, foreign, d)}, nil, OtherDigest, ""},
		{"prefix", false, false, "registry.example/app:1", []Attached{sign(t, team, d)}, nil, "", ""},
		{"prefix, in upper case", false, false, "Registry.Example/app:1", []Attached{sign(t, ours, d)}, nil, UntrustedKey, ""},
		{"prefix, with the usual port", false, false, "registry.example:443/app:1", nil, nil, Unsigned, ""},
		{"prefix, with another port", false, false, "registry.example:5000/app:1", nil, nil, "", Unsigned},
		{"Docker's registry by another name", false, false, "registry-1.docker.io/team/app:1", nil, nil, Unsigned, ""},
		{"prefix, key of the default", false, false, "registry.example/app@" + d.String(), []Attached{sign(t, ours, d)}, nil, UntrustedKey, ""},
		{"prefix, unsigned", false, false, "registry.example/app:1", nil, nil, Unsigned, ""},
		{"no border of components", true, false, "registry.example.org/app:1", []Attached{sign(t, team, d)}, nil, UntrustedKey, ""},
		{"port", true, false, "localhost:5000/a:1", nil, nil, Unsigned, ""},
		{"longer prefix", true, false, "registry.example/scratch:1", nil, nil, "", ""},
		{"longer prefix, below", true, false, "registry.example/scratch/x/y:1", nil, nil, "", ""},
		{"longer prefix, no border", true, false, "registry.example/scratches:1", nil, nil, Unsigned, ""},
		{"longest prefix", true, false, "registry.example/scratch/not/x:1", []Attached{sign(t, team, d)}, nil, UntrustedKey, ""},
		{"unsigned prefix, required", false, true, "registry.example/scratch:1", nil, nil, Unsigned, ""},
		{"unsigned prefix, required, key of the default", false, true, "registry.example/scratch:1", []Attached{sign(t, ours, d)}, nil, "", ""},
		{"no repository", true, false, "", nil, nil, Unsigned, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := NewPolicy(test.signed, []string{ourPub}, prefixes)
			if err != nil {
				t.Fatal(err)
			}
			p.Require = test.require
			doubt, err := p.Judge([]string{test.ref}, d, test.all, test.unread)
			if got := reason(doubt); got != test.doubt {
				t.Errorf("taken with doubt %v, want %s", doubt, test.doubt)
			}
			if got := reason(err); got != test.refused {
				t.Errorf("got %v, want %s", err, test.refused)
			}
			if err != nil && (!errdefs.IsPermissionDenied(err) || !strings.HasPrefix(err.Error(), "signature: ") || failure.Rule(err) != Rule || failure.Hint(err) == "") {
				t.Errorf("got %v, %s", err, failure.Hint(err))
			}
			if _, err := p.Judge([]string{test.ref}, d, nil, unread); p.rule(test.ref).signed != errors.Is(err, unread) {
				t.Errorf("signatures that cannot be read: %v", err)
			}
		})
	}
	// Of several names the strictest counts.
	p, err := NewPolicy(false, []string{ourPub}, prefixes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Judge([]string{"registry.example/scratch:1", "registry.example/app:1"}, d, nil, nil); reason(err) != Unsigned {
		t.Errorf("two names: %v", err)
	}
	if doubt, err := p.Judge([]string{"registry.example/scratch:1", ""}, d, nil, nil); reason(doubt) != Unsigned || err != nil {
		t.Errorf("a name that nobody gave: %v, %v", doubt, err)
	}
	// One that has no name any more is of no repository.
	strict, err := NewPolicy(true, []string{ourPub}, prefixes)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := strict.Judge(nil, d, nil, nil); reason(err) != Unsigned || !strings.Contains(err.Error(), d.String()) {
		t.Errorf("no name: %v", err)
	}
	if s := strict.Signers(nil, d, []Attached{sign(t, ours, d), sign(t, team, d)}); !s[0].Accepted || s[1].Accepted {
		t.Errorf("no name, signers: %+v", s)
	}
	signers := p.Signers([]string{"registry.example/app:1"}, d, []Attached{sign(t, team, d), sign(t, ours, other), sign(t, foreign, d), damaged})
	if len(signers) != 4 || !signers[0].Accepted || signers[0].File != teamPub || signers[1].Problem != OtherDigest || signers[1].Accepted ||
		signers[2].Problem != UntrustedKey || signers[2].File != "" || signers[3].Problem != Damaged {
		t.Errorf("signers: %+v", signers)
	}
}

// reason returns the reason of an error by its text; empty where it is another error, or none.
func reason(err error) Reason {
	if failure.Rule(err) != Rule {
		return ""
	}
	for words, r := range map[string]Reason{" is not signed": Unsigned, " is damaged: ": Damaged, " is signed by ": UntrustedKey, " a signature of another snapshot": OtherDigest} {
		if strings.Contains(err.Error(), words) {
			return r
		}
	}
	return ""
}

// change changes a signature's bundle.
func change(t testing.TB, a Attached, f func(*wire)) Attached {
	t.Helper()
	var w wire
	if err := json.Unmarshal(a.Bundle.Data, &w); err != nil {
		t.Fatal(err)
	}
	f(&w)
	data, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	a.Bundle = record.BlobOf(MediaType, data)
	return a
}

// TestHostile has signatures that are not what they should be, and says which.
func TestHostile(t *testing.T) {
	private, public := newKey(t, "P-256")
	d := digest.FromString("a snapshot")
	p, err := NewPolicy(true, []string{public}, nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ReadPrivateKey(private, secret)
	if err != nil {
		t.Fatal(err)
	}
	resign := func(payload string) func(*wire) {
		return func(w *wire) {
			w.Envelope.Payload = []byte(payload)
			if w.Envelope.Signatures[0].Sig, err = key.sign(w.Envelope.encoded()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		change func(*wire)
		want   Reason
	}{
		"other media type":   {func(w *wire) { w.MediaType = "application/vnd.dev.sigstore.bundle+json;version=0.1" }, Damaged},
		"no envelope":        {func(w *wire) { w.Envelope = nil }, Damaged},
		"no signature":       {func(w *wire) { w.Envelope.Signatures = nil }, Damaged},
		"two signatures":     {func(w *wire) { w.Envelope.Signatures = append(w.Envelope.Signatures, w.Envelope.Signatures[0]) }, Damaged},
		"empty signature":    {func(w *wire) { w.Envelope.Signatures[0].Sig = nil }, Damaged},
		"other payload type": {func(w *wire) { w.Envelope.PayloadType = "text/plain" }, Damaged},
		"other payload":      {func(w *wire) { w.Envelope.Payload = append(w.Envelope.Payload, ' ') }, Damaged},
		"hint of another":    {func(w *wire) { w.Material.PublicKey.Hint = "AAAA" }, ""},
		"no hint":            {func(w *wire) { w.Material.PublicKey = nil }, ""},
		"hint with lines":    {func(w *wire) { w.Material.PublicKey.Hint, w.Envelope.Signatures[0].Sig = "x\ncryo: fine", nil }, UntrustedKey},
		"no JSON":            {resign("a"), Damaged},
		"no statement":       {resign(`{"_type":"x","subject":[{"digest":{"sha256":"` + d.Encoded() + `"}}],"predicateType":"` + predicateType + `"}`), Damaged},
		"no subject":         {resign(`{"_type":"` + statementType + `","predicateType":"` + predicateType + `"}`), OtherDigest},
		"another algorithm":  {resign(`{"_type":"` + statementType + `","subject":[{"digest":{"sha512":"` + d.Encoded() + `"}}],"predicateType":"` + predicateType + `"}`), OtherDigest},
		"an attestation":     {resign(`{"_type":"` + statementType + `","subject":[{"digest":{"sha256":"` + d.Encoded() + `"}}],"predicateType":"https://slsa.dev/provenance/v1"}`), Unsigned},
		"second subject":     {resign(`{"_type":"` + statementType + `","subject":[{"digest":{}},{"digest":{"sha256":"` + d.Encoded() + `"}}],"predicateType":"` + predicateType + `"}`), ""},
	} {
		_, err := p.Judge([]string{"docker.io/library/a:1"}, d, []Attached{change(t, sign(t, private, d), test.change)}, nil)
		if got := reason(err); got != test.want || err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, want %q", name, err, test.want)
		}
	}
	large := Attached{Bundle: record.BlobOf(MediaType, append(sign(t, private, d).Bundle.Data, make([]byte, MaxSize)...))}
	if _, err := p.Judge([]string{"a.b/c:1"}, d, []Attached{large}, nil); reason(err) != Damaged {
		t.Errorf("too large: %v", err)
	}
	// Manifests.
	good := sign(t, private, d)
	for name, change := range map[string]func(*ocispec.Manifest){
		"other artifact":  func(m *ocispec.Manifest) { m.ArtifactType = "text/plain" },
		"no subject":      func(m *ocispec.Manifest) { m.Subject = nil },
		"other subject":   func(m *ocispec.Manifest) { m.Subject.Digest = digest.FromString("another") },
		"config":          func(m *ocispec.Manifest) { m.Config.Digest = d },
		"two bundles":     func(m *ocispec.Manifest) { m.Layers = append(m.Layers, m.Layers[0]) },
		"no bundle":       func(m *ocispec.Manifest) { m.Layers = nil },
		"another layer":   func(m *ocispec.Manifest) { m.Layers[0].MediaType = "text/plain" },
		"missing bundle":  func(m *ocispec.Manifest) { m.Layers[0].Digest = d },
		"a large bundle":  func(m *ocispec.Manifest) { m.Layers[0].Size = MaxSize + 1 },
		"nothing changed": func(*ocispec.Manifest) {},
	} {
		var m ocispec.Manifest
		if err := json.Unmarshal(good.Manifest.Data, &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		manifest := record.BlobOf(ocispec.MediaTypeImageManifest, data)
		a, err := Read(t.Context(), holds(manifest, good.Bundle), manifest.Descriptor, d)
		if err != nil || (a.Err == nil) != (name == "nothing changed") {
			t.Errorf("%s: %v, %v", name, a.Err, err)
		}
	}
}

func FuzzBundle(f *testing.F) {
	private, public := newKey(f, "ed25519")
	d := digest.FromString("a snapshot")
	f.Add(sign(f, private, d).Bundle.Data)
	f.Add(read(f, "testdata/cosign.bundle.json"))
	p, err := NewPolicy(true, []string{public}, nil)
	if err != nil {
		f.Fatal(err)
	}
	other := digest.FromString("another")
	f.Fuzz(func(t *testing.T, data []byte) {
		all := []Attached{{Bundle: record.BlobOf(MediaType, data)}}
		if _, err := p.Judge([]string{"a.b/c:1"}, other, all, nil); !errdefs.IsPermissionDenied(err) {
			t.Errorf("taken: %v", err)
		}
	})
}
