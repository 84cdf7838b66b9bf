package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/cryo-project/cryo/image/signature"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/lab"
	"github.com/cryo-project/cryo/integration/storetest"
)

// configured runs cryo on a host by a configuration that is the host's own, and more.
func configured(t *testing.T, h *lab.Host, more string, args ...string) lab.Result {
	t.Helper()
	own, err := os.ReadFile(filepath.Join(h.Dir, "cryo.toml"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cryo.toml")
	if err := os.WriteFile(path, append(own, "\n"+more...), 0o600); err != nil {
		t.Fatal(err)
	}
	return h.Cryo(t.Context(), append(args, "--config", path)...)
}

// The words by which signatures are refused, and warned of.
const (
	saysUnsigned = "is not signed"
	saysForeign  = "no key that is trusted here"
	saysMoved    = "has a signature of another snapshot"
)

// TestSignature restores snapshots that are signed, and are not, in each way, from a registry under each policy.
func TestSignature(t *testing.T) {
	a, b := pair(t)
	f, other := freeze(t, []string{"count"}), freeze(t, []string{"count", "--memory", "1"})
	pullBase(t, b)
	private, public := storetest.Key(t)
	strange, strangePub := storetest.Key(t)
	base := shared.registry.Reference("trust")
	ref := func(name string) string { return base + "/" + name + ":1" }
	push := func(name string) {
		must(t, a.Cryo(t.Context(), "push", f.ref, ref(name), "--plain-http"))
	}
	push("unsigned")
	push("foreign")
	// It is in no store by this name: the signature goes to the registry.
	signed := must(t, a.Cryo(t.Context(), "sign", ref("foreign"), "--key", strange, "--plain-http", "--json")).Stdout
	if !strings.Contains(signed, `"where": "registry"`) || !strings.Contains(signed, f.digest.String()) {
		t.Errorf("sign says %s", signed)
	}
	// The manifest is changed, and has the name of the one that is signed.
	push("tampered")
	must(t, a.Cryo(t.Context(), "sign", ref("tampered"), "--key", private, "--plain-http"))
	var m ocispec.Manifest
	if err := json.Unmarshal(manifest(t, "trust/tampered", "1"), &m); err != nil {
		t.Fatal(err)
	}
	m.Annotations = map[string]string{"tampered": "yes"}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "manifest.json")
	if err := os.WriteFile(changed, data, 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, a.Run(t.Context(), "oras", "manifest", "push", "--plain-http", ref("tampered"), changed))
	// The signature of another snapshot hangs on this one.
	s, err := store.Open(a.CryoRoot())
	if err != nil {
		t.Fatal(err)
	}
	subject, err := s.Resolve(t.Context(), f.ref)
	if err != nil {
		t.Fatal(err)
	}
	op, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer op.Close()
	wrong := storetest.SignFor(t, private, ocispec.Descriptor{Digest: other.digest}, subject)
	if err := s.Attach(t.Context(), []signature.Attached{wrong}); err != nil {
		t.Fatal(err)
	}
	push("moved")
	must(t, a.Cryo(t.Context(), "sign", f.ref, "--key", private))
	if again := must(t, a.Cryo(t.Context(), "sign", f.ref, "--key", private)).Stdout; !strings.Contains(again, "has signed already") {
		t.Errorf("signing again says %s", again)
	}
	push("signed")

	for _, policy := range []struct {
		name, trust string
		flags       []string
		// What each snapshot is refused for, or, after a question mark, warned of; empty: neither.
		signed, unsigned, foreign, tampered, moved string
	}{
		{"default", "", nil, "?" + saysForeign, "?" + saysUnsigned, "?" + saysForeign, "?" + saysUnsigned, "?" + saysForeign},
		{"keys", fmt.Sprintf("[trust]\nkeys = [%q]\n", public), nil, "", "?" + saysUnsigned, "?" + saysForeign, "?" + saysUnsigned, "?" + saysMoved},
		{"signed", fmt.Sprintf("[trust]\ndefault = 'signed'\nkeys = [%q]\n", public), nil, "", saysUnsigned, saysForeign, saysUnsigned, saysMoved},
		{"prefix with key", fmt.Sprintf("[trust.repositories]\n%q = [%q]\n", base, public), nil, "", saysUnsigned, saysForeign, saysUnsigned, saysMoved},
		{"longer prefix with another key", fmt.Sprintf("[trust.repositories]\n%q = [%q]\n%q = [%q]\n%q = [%q]\n", base, public, base+"/foreign", strangePub, base+"/sig", strangePub), nil,
			"", saysUnsigned, "", saysUnsigned, saysMoved},
		{"key of another repository", fmt.Sprintf("[trust]\nkeys = [%q]\n[trust.repositories]\n%q = [%q]\n", public, base+"/signed", strangePub), nil,
			saysForeign, "?" + saysUnsigned, "?" + saysForeign, "?" + saysUnsigned, "?" + saysMoved},
		{"unsigned prefix", fmt.Sprintf("[trust]\ndefault = 'signed'\nkeys = [%q]\n[trust.repositories]\n%q = 'unsigned'\n", public, base), nil, "", "", "", "", ""},
		{"flag", fmt.Sprintf("[trust]\nkeys = [%q]\n[trust.repositories]\n%q = 'unsigned'\n", public, base), []string{"--require-signature"}, "", saysUnsigned, saysForeign, saysUnsigned, saysMoved},
		{"flag without keys", "", []string{"--require-signature"}, saysForeign, saysUnsigned, saysForeign, saysUnsigned, saysForeign},
	} {
		t.Run(policy.name, func(t *testing.T) {
			for name, words := range map[string]string{"signed": policy.signed, "unsigned": policy.unsigned, "foreign": policy.foreign, "tampered": policy.tampered, "moved": policy.moved} {
				id := f.id + "-trusted"
				cleanup(t, b, id)
				away(t, ref(name))
				warned, warns := strings.CutPrefix(words, "?")
				if words != "" && !warns {
					for _, command := range [][]string{{"restore", ref(name), "--name", id}, {"pull", ref(name)}, {"prewarm", ref(name)}} {
						args := append(append(command, "--plain-http"), policy.flags...)
						unchanged(t, b, func() {
							r := configured(t, b, policy.trust, args...)
							refusal(t, r, codeDenied, words)
							if !strings.Contains(r.Stderr, "signature: ") {
								t.Errorf("the rule is not named:\n%s", r.Stderr)
							}
						})
					}
					continue
				}
				r := must(t, configured(t, b, policy.trust, append([]string{"restore", ref(name), "--plain-http", "--wait", "--name", id}, policy.flags...)...))
				goneOn(t, f.before, await(t, b, id))
				if warns != strings.Contains(r.Stderr, "warning: signature: ") || !strings.Contains(r.Stderr, warned) || strings.Count(r.Stderr, "\n") > 1 {
					t.Errorf("%s: want one line of warning (%v, %q), got\n%s", name, warns, warned, r.Stderr)
				}
				remove(t.Context(), b, id)
				must(t, b.Cryo(t.Context(), "rm", ref(name)))
			}
		})
	}
}

// TestSignatureKept: what was fetched under an easy policy is judged again by a strict one, in the store and in files.
func TestSignatureKept(t *testing.T) {
	a, b := pair(t)
	private, public := storetest.Key(t)
	id := name(t)
	ref, plain := shared.registry.Reference("kept/"+id+":1"), shared.registry.Reference("kept/"+id+":2")
	startImage(t, a, shared.image, id, nil, "workload", "count")
	before := await(t, a, id)
	away(t, ref)
	away(t, plain)
	refusal(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--push", "--plain-http", "--sign-key", public), codeUsage, "private")
	must(t, a.Cryo(t.Context(), "checkpoint", id, plain, "--leave-running", "--push", "--plain-http"))
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--sign-key", private))
	remove(t.Context(), a, id)
	strict := fmt.Sprintf("[trust]\ndefault = 'signed'\nkeys = [%q]\n", public)
	for _, r := range []string{ref, plain} {
		must(t, b.Cryo(t.Context(), "pull", r, "--plain-http"))
	}
	// A signature is of a digest: under another name it still counts, as long as the same keys do.
	renamed := shared.registry.Reference("kept/" + id + ":renamed")
	away(t, renamed)
	must(t, a.Run(t.Context(), "oras", "tag", "--plain-http", ref, "renamed"))
	must(t, configured(t, b, strict, "pull", renamed, "--plain-http"))
	digests := map[string]string{ref: inspect(t, b, ref).Digest.String(), plain: inspect(t, b, plain).Digest.String()}
	cleanup(t, b, id)
	restored := func(ref string) {
		t.Helper()
		must(t, configured(t, b, strict, "restore", ref, "--plain-http", "--wait", "--name", id))
		goneOn(t, before, await(t, b, id))
		remove(t.Context(), b, id)
	}
	restored(ref)
	restored(digests[ref])
	for _, r := range []string{plain, digests[plain]} {
		refusal(t, configured(t, b, strict, "restore", r, "--plain-http", "--name", id), codeDenied, saysUnsigned)
	}
	refusal(t, configured(t, b, strict, "prewarm", plain, "--plain-http"), codeDenied, saysUnsigned)
	must(t, b.Cryo(t.Context(), "prewarm", plain, "--plain-http"))
	refusal(t, configured(t, b, strict, "restore", plain, "--plain-http", "--name", id), codeDenied, saysUnsigned)
	must(t, b.Cryo(t.Context(), "prewarm", "rm", plain))
	key, err := signature.ReadPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	if text := must(t, configured(t, b, strict, "inspect", ref)).Stdout; !strings.Contains(text, key.Fingerprint()+" ("+public+")") {
		t.Errorf("inspect does not say who has signed:\n%s", text)
	}
	if text := must(t, b.Cryo(t.Context(), "inspect", plain)).Stdout; !strings.Contains(text, "nobody") {
		t.Errorf("inspect does not say that nobody has signed:\n%s", text)
	}
	var said struct{ Signatures []signature.Signer }
	out := must(t, b.Cryo(t.Context(), "inspect", ref, "--json")).Stdout
	if err := json.Unmarshal([]byte(out), &said); err != nil || len(said.Signatures) != 1 || said.Signatures[0].Key != key.Fingerprint() || said.Signatures[0].Accepted {
		t.Errorf("without the key, inspect says %+v, %v", said, err)
	}

	// Files. Whoever makes one chooses the name in it.
	files := filepath.Join(b.Dir, "home", id)
	t.Cleanup(func() { os.RemoveAll(files) })
	for n, r := range []string{ref, plain} {
		for _, at := range []string{fmt.Sprintf("oci:%s/%d", files, n), fmt.Sprintf("oci-archive:%s/%d.tar", files, n)} {
			must(t, b.Cryo(t.Context(), "push", r, at))
			must(t, b.Cryo(t.Context(), "rm", r))
			loose := strict + fmt.Sprintf("[trust.repositories]\n%q = 'unsigned'\n", shared.registry.Address)
			if r == plain {
				for _, command := range []string{"pull", "restore"} {
					refusal(t, configured(t, b, strict, command, at), codeDenied, saysUnsigned)
					refusal(t, configured(t, b, loose, command, at), codeDenied, saysUnsigned)
				}
				must(t, configured(t, b, loose, "pull", at+":"+r))
				continue
			}
			must(t, configured(t, b, strict, "pull", at))
			restored(r)
		}
	}
}

// TestSignatureShim: the shim judges by the configuration of the host, whatever the command was told, and has stock clients restore nothing where all must be signed.
func TestSignatureShim(t *testing.T) {
	a, _ := pair(t)
	private, public := storetest.Key(t)
	id := name(t)
	ref, plain := shared.registry.Reference("shim/"+id+":1"), shared.registry.Reference("shim/"+id+":2")
	start(t, a, id, nil, "workload", "count")
	before := await(t, a, id)
	away(t, ref)
	away(t, plain)
	must(t, a.Cryo(t.Context(), "checkpoint", id, plain, "--leave-running", "--push", "--plain-http"))
	must(t, a.Cryo(t.Context(), "checkpoint", id, ref, "--leave-running", "--push", "--plain-http", "--sign-key", private))
	stock := "signature/shim:" + id
	must(t, a.Ctr(t.Context(), "containers", "checkpoint", "--task", "--rw", "--image", id, stock))
	t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "rm", stock) })
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	cleanup(t, a, id)

	loose := filepath.Join(t.TempDir(), "loose.toml")
	if err := os.WriteFile(loose, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Configure("") })
	for _, trust := range []string{
		fmt.Sprintf("[trust]\ndefault = 'signed'\nkeys = [%q]\n", public),
		fmt.Sprintf("[trust.repositories]\n%q = [%q]\n", shared.registry.Address, public),
	} {
		if err := a.Configure(trust); err != nil {
			t.Fatal(err)
		}
		unchanged(t, a, func() {
			r := a.Cryo(t.Context(), "restore", plain, "--config", loose)
			refusal(t, r, codeDenied, saysUnsigned)
			if !strings.Contains(r.Stderr, "create the task: ") {
				t.Errorf("the shim has not refused it:\n%s", r.Stderr)
			}
		})
		for _, flags := range [][]string{nil, {"--eager"}, {"--require-signature"}} { // from the registry, and then the store
			must(t, a.Cryo(t.Context(), append([]string{"restore", ref, "--plain-http", "--wait"}, flags...)...))
			goneOn(t, before, await(t, a, id))
			remove(t.Context(), a, id)
		}
		must(t, a.Cryo(t.Context(), "rm", ref))
		r := a.Ctr(t.Context(), "containers", "restore", "--live", id, stock)
		if strings.Contains(trust, "default") {
			if r.Code == 0 || !strings.Contains(r.Stderr, "signature: the client that restores "+id+" names no snapshot") || !strings.Contains(r.Stderr, "hint: ") {
				t.Errorf("ctr by a policy that asks for signatures everywhere: %v", r)
			}
		} else {
			must(t, r) // nothing says of which repository it is
			goneOn(t, before, await(t, a, id))
		}
		remove(t.Context(), a, id)
	}
}
