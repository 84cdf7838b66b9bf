//go:build tools

// Package tools pins the daemons and clients the integration tests run against.
package tools

import (
	_ "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod"
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
	_ "github.com/cryo-project/cryo/integration/tools/registry"
	_ "github.com/google/go-containerregistry/cmd/crane"
	_ "github.com/goreleaser/nfpm/v2/cmd/nfpm"
	_ "github.com/opencontainers/runc"
	_ "github.com/spegel-org/spegel"
	_ "golang.org/x/vuln/cmd/govulncheck"
	_ "honnef.co/go/tools/cmd/staticcheck"
	_ "oras.land/oras/cmd/oras"
)
