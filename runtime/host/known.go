package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// Known are features that this host was found to have, by CRIU's names, remembered in a file: where CRIU cannot remember what it finds out of the kernel
// itself, which it does in /run if that is a tmpfs, it takes 40 ms to say each time. They count until the host or CRIU is another. What the host lacked is asked
// again, since a module may have been loaded.
type Known string

// remembered is what the file has.
type remembered struct {
	Host     string   `json:"host"` // see identity
	Features []string `json:"features"`
}

// Features gives those of names that the host has, as the function Features does. Where the file cannot be read or written, nothing is remembered.
func (k Known) Features(ctx context.Context, criu string, names []string) []string {
	if len(names) == 0 {
		return nil
	}
	if criu == "" {
		criu = "criu"
	}
	r := remembered{Host: identity(criu)}
	if old, err := k.read(); err == nil && r.Host != "" && old.Host == r.Host {
		r.Features = old.Features
	}
	unknown := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(r.Features, name) })
	if found := Features(ctx, criu, unknown); len(found) > 0 {
		r.Features = append(r.Features, found...)
		if r.Host != "" {
			_ = k.write(r) // it is asked again next time
		}
	}
	var has []string
	for _, name := range names {
		if slices.Contains(r.Features, name) && !slices.Contains(has, name) {
			has = append(has, name)
		}
	}
	return has
}

// identity is that of a program, and of the kernel as it was started; empty: it is not known.
func identity(path string) string {
	full, err := exec.LookPath(path)
	if err != nil {
		return ""
	}
	info, err := os.Stat(full)
	if err != nil {
		return ""
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	s := info.Sys().(*syscall.Stat_t) // what os.Stat gives on Linux
	return fmt.Sprintf("%s %s %d:%d %d %d", strings.TrimSpace(string(boot)), full, s.Dev, s.Ino, s.Size, info.ModTime().UnixNano())
}

func (k Known) read() (r remembered, err error) {
	data, err := os.ReadFile(string(k))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// write replaces the file. It need not survive the host: what cannot be read is asked again.
func (k Known) write(r remembered) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	next := string(k) + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return os.Rename(next, string(k))
}
