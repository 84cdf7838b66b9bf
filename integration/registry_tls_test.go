package integration

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestRegistryCertificate meets certificates that nobody vouches for, and files that are no certificate authorities.
func TestRegistryCertificate(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	r := newRegistry(t, "certified", lab.RegistryOptions{TLS: true})
	other := newRegistry(t, "certified-other", lab.RegistryOptions{TLS: true})
	to := r.Reference("snapshots/certified:1")
	for _, test := range []struct {
		name, words string
		code        int
		flags       []string
	}{
		{"unknown authority", "certificate", codeUnavailable, nil},
		{"another authority", "certificate", codeUnavailable, []string{"--tlscacert", other.CA}},
		{"no file", "/nowhere.crt", codeUsage, []string{"--tlscacert", "/nowhere.crt"}},
		{"no certificates", "/etc/hostname", codeUsage, []string{"--tlscacert", "/etc/hostname"}},
		{"plain HTTP to TLS", "speaks HTTPS", codeUnavailable, []string{"--plain-http"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			refused(t, a, test.code, test.words, append([]string{"push", f.ref, to}, test.flags...)...)
			refused(t, a, test.code, test.words, append([]string{"pull", to}, test.flags...)...)
		})
	}
}

// TestRegistryLoopback speaks plain HTTP to a registry on the host's own loopback without being told, and TLS where there
// is TLS.
func TestRegistryLoopback(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	plain := newRegistry(t, "loopback-plain", lab.RegistryOptions{Host: a})
	secure := newRegistry(t, "loopback-secure", lab.RegistryOptions{Host: a, TLS: true})
	for _, test := range []struct {
		registry *lab.Registry
		flags    []string
	}{
		{plain, nil},
		{secure, []string{"--tlscacert", secure.CA}},
	} {
		to := test.registry.Reference("snapshots/loopback:1")
		away(t, to)
		must(t, a.Cryo(t.Context(), append([]string{"push", f.ref, to}, test.flags...)...))
		must(t, a.Cryo(t.Context(), append([]string{"pull", to}, test.flags...)...))
		if got := inspect(t, a, to).Digest; got != f.digest {
			t.Errorf("digest %s became %s", f.digest, got)
		}
	}
}

// TestRegistryAuthorityPath names a certificate authority by a path relative to the command's working directory, in which neither the process that pushes nor the one that pulls is.
func TestRegistryAuthorityPath(t *testing.T) {
	a, _ := pair(t)
	r := newRegistry(t, "authority-path", lab.RegistryOptions{TLS: true})
	dir, file := filepath.Split(r.CA)
	beside := func(args ...string) lab.Result {
		return a.Run(t.Context(), slices.Concat([]string{"sh", "-c", `cd "$0" && exec cryo "$@"`, dir}, args, []string{"--tlscacert", file})...)
	}
	id := name(t)
	ref := r.Reference("snapshots/" + id + ":1")
	forget(t, a, ref)
	start(t, a, id, nil, "workload", "count", "--memory", "8")
	must(t, beside("checkpoint", id, ref, "--push"))
	remove(t.Context(), a, id)
	must(t, a.Cryo(t.Context(), "rm", ref))
	must(t, beside("restore", ref, "--name", id))
	await(t, a, id)
}
