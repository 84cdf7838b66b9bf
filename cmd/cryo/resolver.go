package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/log"
	"oras.land/oras-go/v2/registry/remote/credentials"

	"github.com/cryo-project/cryo/image/registry"
)

// hostsDirs are where containerd and Docker keep what an administrator says about registries.
var hostsDirs = []string{"/etc/containerd/certs.d", "/etc/docker/certs.d"}

// resolver reaches registries for containerd's client as package registry does for snapshots.
func resolver(ctx context.Context, o registry.Options) remotes.Resolver {
	options := dockerconfig.HostOptions{
		Credentials: func(host string) (string, string, error) {
			if o.Username != "" {
				return o.Username, o.Password, nil
			}
			return storedCredentials(ctx, host)
		},
		HostDir: func(host string) (string, error) {
			for _, dir := range hostsDirs {
				if found, err := dockerconfig.HostDirFromRoot(dir)(host); err == nil && found != "" {
					return found, nil
				}
			}
			return "", nil
		},
	}
	if o.PlainHTTP {
		options.DefaultScheme = "http"
	}
	if o.Insecure || o.CAFile != "" {
		config, err := tlsConfig(o)
		if err != nil {
			log.G(ctx).WithError(err).Debug("registry certificates")
		} else {
			options.DefaultTLS = config
		}
	}
	return docker.NewResolver(docker.ResolverOptions{Hosts: dockerconfig.ConfigureHosts(ctx, options)})
}

func tlsConfig(o registry.Options) (*tls.Config, error) {
	config := &tls.Config{InsecureSkipVerify: o.Insecure, MinVersion: tls.VersionTLS12} //nolint:gosec // --skip-verify says so
	if o.CAFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(o.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate authorities: %w", err)
	}
	if config.RootCAs, err = x509.SystemCertPool(); err != nil {
		config.RootCAs = x509.NewCertPool()
	}
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read certificate authorities: %s has none", o.CAFile)
	}
	return config, nil
}

// storedCredentials asks Docker's credential store. An identity token counts as a secret without a user name.
func storedCredentials(ctx context.Context, host string) (user, secret string, err error) {
	s, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return "", "", fmt.Errorf("open Docker's credential store: %w", err)
	}
	c, err := s.Get(ctx, credentials.ServerAddressFromHostname(host))
	if err != nil {
		return "", "", fmt.Errorf("ask Docker's credential store for %s: %w", host, err)
	}
	if c.RefreshToken != "" {
		return "", c.RefreshToken, nil
	}
	return c.Username, c.Password, nil
}
