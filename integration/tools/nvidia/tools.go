//go:build tools

// Package nvidia pins what makes the CDI specification on machines with NVIDIA GPUs, and runs its hooks.
package nvidia

import (
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"
	_ "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk"
)
