package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// bundlesOf gives the directory in which containerd keeps the bundles of a namespace; "" if no shim of cryo's runs for it. containerd does not tell its clients
// where that is. The working directory of a shim is a bundle, so a shim of this containerd and this namespace is looked for.
func bundlesOf(address, namespace string) string {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	processes, _ := filepath.Glob("/proc/[0-9]*") // the pattern is well formed
	for _, dir := range processes {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		words := strings.Split(string(line), "\x00")
		if err != nil || filepath.Base(words[0]) != shimName || argument(words, "-namespace") != namespace ||
			strings.TrimPrefix(argument(words, "-address"), "unix://") != strings.TrimPrefix(address, "unix://") {
			continue
		}
		// A path counts in the mount namespace of who uses it.
		if theirs, err := os.Readlink(filepath.Join(dir, "ns/mnt")); err != nil || theirs != own {
			continue
		}
		if bundle, err := os.Readlink(filepath.Join(dir, "cwd")); err == nil && filepath.Base(filepath.Dir(bundle)) == namespace {
			return filepath.Dir(bundle)
		}
	}
	return ""
}

// argument gives the word that follows a flag.
func argument(words []string, flag string) string {
	if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}
