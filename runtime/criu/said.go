package criu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// saidDir has what programs have said of themselves and of the kernel. Its parent is there as soon as cryo has restored or saved a container since the host was started.
const saidDir = "/run/cryo/said"

// Said returns what a program prints when it is run with args, by ask, which runs it. What it has printed before is returned without running it, until the program changes or the host is
// started again: each restore needs the versions of CRIU and runc, and three programs take longer than all else before a container is made. Errors are not kept.
func Said(program string, args []string, ask func() (string, error)) (string, error) {
	return said(saidDir, program, args, ask)
}

func said(dir, program string, args []string, ask func() (string, error)) (string, error) {
	key := identity(program, args)
	if key == "" { // it will say why it cannot be run
		return ask()
	}
	path := filepath.Join(dir, key)
	if kept, err := os.ReadFile(path); err == nil {
		return string(kept), nil
	}
	text, err := ask()
	if err != nil {
		return text, err
	}
	keep(path, text)
	return text, nil
}

// identity returns a name for a program as it is now, with its arguments, since the host was started; empty: there is no such program.
func identity(program string, args []string) string {
	full, err := exec.LookPath(program)
	if err != nil {
		return ""
	}
	var s unix.Stat_t
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || unix.Stat(full, &s) != nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %d %d %d %d %d", full, args, strings.TrimSpace(string(boot)), s.Dev, s.Ino, s.Size, s.Mtim.Nano(), s.Ctim.Nano()))
	return hex.EncodeToString(sum[:])
}

// keep writes a file, whole or not at all. A file that cannot be written is asked for again.
func keep(path, text string) {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !os.IsExist(err) {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new-")
	if err != nil {
		return
	}
	_, err = f.WriteString(text)
	if f.Close() == nil && err == nil && os.Rename(f.Name(), path) == nil {
		return
	}
	_ = os.Remove(f.Name())
}
