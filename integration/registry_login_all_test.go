package integration

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/integration/lab"
)

// TestRegistryLogin pushes to each kind of registry, and restores from it on a host that has nothing yet: what lets cryo in
// must let it have the base image too.
func TestRegistryLogin(t *testing.T) {
	a, _ := pair(t)
	far := newHost(t, "far", lab.HostOptions{})
	f := freeze(t, []string{"count", "--memory", "8"})
	for _, test := range []struct {
		name     string
		registry lab.RegistryOptions
		login    string // Docker's config.json; HOST is the registry, AUTH what Docker keeps of user and password
		flags    []string
	}{
		{"basic, logged in", lab.RegistryOptions{Auth: lab.Basic}, `{"auths":{"HOST":{"auth":"AUTH"}}}`, nil},
		{"basic, helper of the registry", lab.RegistryOptions{Auth: lab.Basic}, `{"credHelpers":{"HOST":"lab"}}`, nil},
		{"basic, helper of all", lab.RegistryOptions{Auth: lab.Basic}, `{"auths":{"HOST":{}},"credsStore":"lab"}`, nil},
		{"token, logged in", lab.RegistryOptions{Auth: lab.Token}, `{"auths":{"HOST":{"auth":"AUTH"}}}`, nil},
		{"token, flag", lab.RegistryOptions{Auth: lab.Token}, `{}`, []string{"--user", lab.User + ":" + lab.Password}},
		{"TLS", lab.RegistryOptions{TLS: true}, `{}`, nil},
		{"TLS, any certificate", lab.RegistryOptions{TLS: true}, `{}`, []string{"--skip-verify"}},
		{"TLS, helper", lab.RegistryOptions{TLS: true, Auth: lab.Basic}, `{"credHelpers":{"HOST":"lab"}}`, nil},
		{"TLS, token", lab.RegistryOptions{TLS: true, Auth: lab.Token}, `{"auths":{"HOST":{"auth":"AUTH"}}}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRegistry(t, strings.NewReplacer(", ", "-", " ", "-").Replace(test.name), test.registry)
			if _, err := a.Seed(t.Context(), r, lab.ImageName); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { a.Ctr(cleanupContext(t), "images", "delete", r.Reference("base:1")) })
			flags := test.flags
			switch {
			case !test.registry.TLS:
				flags = append(flags, "--plain-http")
			case len(flags) == 0:
				flags = append(flags, "--tlscacert", r.CA)
			}
			to := r.Reference("base:snapshot")
			must(t, loggedIn(t, a, r, test.login, append([]string{"push", f.ref, to}, flags...)...))

			t.Cleanup(func() { forgetAll(t, far) })
			forgetAll(t, far)
			id := name(t)
			cleanup(t, far, id)
			must(t, loggedIn(t, far, r, test.login, append([]string{"restore", to, "--name", id}, flags...)...))
			goneOn(t, f.before, await(t, far, id))
			remove(t.Context(), far, id)
		})
	}
}

// loggedIn runs cryo with a configuration of Docker's, beside a credential helper named lab.
func loggedIn(t *testing.T, h *lab.Host, r *lab.Registry, config string, args ...string) lab.Result {
	t.Helper()
	dir := filepath.Join(h.Dir, "home", r.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	auth := base64.StdEncoding.EncodeToString([]byte(lab.User + ":" + lab.Password))
	config = strings.NewReplacer("HOST", r.Address, "AUTH", auth).Replace(config)
	// See https://github.com/docker/docker-credential-helpers: the registry comes on standard input.
	helper := fmt.Sprintf("#!/bin/sh\nread -r host\n[ \"$1 $host\" = \"get %s\" ] && echo '{\"ServerURL\":\"%[1]s\",\"Username\":\"%s\",\"Secret\":\"%s\"}'\n",
		r.Address, lab.User, lab.Password)
	for file, content := range map[string]string{"config.json": config, "docker-credential-lab": helper} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return h.Run(t.Context(), append([]string{"sh", "-c", `export DOCKER_CONFIG=$0 PATH=$0:$PATH; exec cryo "$@"`, dir}, args...)...)
}

// forgetAll removes every image and every snapshot from a host.
func forgetAll(t *testing.T, h *lab.Host) {
	t.Helper()
	ctx := cleanupContext(t)
	for _, image := range strings.Fields(must(t, h.Ctr(ctx, "images", "ls", "-q")).Stdout) {
		must(t, h.Ctr(ctx, "images", "delete", "--sync", image))
	}
	for _, ref := range strings.Fields(must(t, h.Cryo(ctx, "ls", "-q")).Stdout) {
		must(t, h.Cryo(ctx, "rm", ref))
	}
}

// TestRegistryTokenRefused knocks at a token service without a login, and with a wrong one.
func TestRegistryTokenRefused(t *testing.T) {
	a, _ := pair(t)
	f := freeze(t, []string{"count"})
	r := newRegistry(t, "tokens", lab.RegistryOptions{Auth: lab.Token})
	to := r.Reference("snapshots/refused:1")
	for _, test := range []struct {
		words string
		flags []string
	}{
		{"wants a login", nil},
		{"refuses the password", []string{"--user", lab.User + ":guess"}},
	} {
		flags := append([]string{"--plain-http"}, test.flags...)
		refused(t, a, codeDenied, test.words, append([]string{"push", f.ref, to}, flags...)...)
		refused(t, a, codeDenied, test.words, append([]string{"pull", to}, flags...)...)
	}
}
