package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/fit"
	"github.com/cryo-project/cryo/image/pages"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/host"
)

// facts looks over this host. Without a CRIU that is new enough it fails.
func (a *app) facts(ctx context.Context, features []string) (host.Facts, error) {
	c, err := a.config()
	if err != nil {
		return host.Facts{}, err
	}
	path, err := c.FindCRIU()
	if err != nil {
		return host.Facts{}, err
	}
	version, err := host.CRIUVersion(ctx, path)
	if cause := context.Cause(ctx); cause != nil {
		return host.Facts{}, fmt.Errorf("look over the host: %w", cause) // CRIU was ended with it
	}
	if err != nil {
		return host.Facts{}, &criu.UnusableError{Path: path, Err: err}
	}
	if !criu.AtLeast(version, criu.Minimum) {
		return host.Facts{}, &criu.UnusableError{Path: path, Version: version}
	}
	facts, _, err := host.Collect(ctx, host.Options{CRIU: path, Features: features})
	return facts, err
}

// recordLock puts into a snapshot's config what a host must have to lock the container's network as CRIU did for the dump in images.
func recordLock(c *image.Config, images string) error {
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err != nil {
		return fmt.Errorf("read the runtime specification: %w", err)
	}
	if spec.Linux == nil || !slices.ContainsFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace }) {
		return nil // CRIU leaves the host's network alone
	}
	lock, err := pages.ReadNetworkLock(images)
	if err == nil && lock == pages.LockNFTables {
		c.Host.Features = append(c.Host.Features, fit.NFTablesLock)
	}
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// neededFeatures names what the kernel must have, in CRIU's words, for what a container is made of.
func neededFeatures(spec *specs.Spec) []string {
	if spec.Linux == nil {
		return nil
	}
	for _, ns := range spec.Linux.Namespaces {
		if ns.Type == specs.TimeNamespace {
			return []string{"timens"}
		}
	}
	return nil
}
