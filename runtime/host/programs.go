package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/runtime/criu"
)

// patience is how long a program may take to tell its version.
const patience = 10 * time.Second

// Runc is what runc says of itself.
type Runc struct {
	Path    string
	Version string
	Seccomp bool // built with seccomp
}

// CRIUVersion returns the version of the criu program at path; empty means criu in PATH. The error says why there is none.
func CRIUVersion(ctx context.Context, path string) (string, error) {
	if path == "" {
		path = "criu"
	}
	out, err := said(ctx, path, "--version")
	if err != nil {
		return "", err
	}
	return criu.ParseVersion(out)
}

// RuncVersion asks the runc program at path for its features; empty means runc in PATH.
func RuncVersion(ctx context.Context, path string) (Runc, error) {
	if path == "" {
		path = "runc"
	}
	full, err := exec.LookPath(path)
	if err != nil {
		return Runc{}, fmt.Errorf("find %s: %w", path, err)
	}
	out, err := said(ctx, full, "features")
	if err != nil {
		return Runc{}, err
	}
	var f struct {
		Linux       struct{ Seccomp struct{ Enabled bool } }
		Annotations map[string]string
	}
	err = json.Unmarshal([]byte(out), &f)
	r := Runc{Path: full, Version: f.Annotations["org.opencontainers.runc.version"], Seccomp: f.Linux.Seccomp.Enabled}
	if err != nil || r.Version == "" {
		return Runc{}, fmt.Errorf("find a version in what %s features prints: %w", full, errors.Join(err, errdefs.ErrNotFound))
	}
	return r, nil
}

// featureName is what CRIU's names of features look like; others never reach its command line.
var featureName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z0-9_-]{0,40}$`) })

// Features returns those of names that the host has, as criu check --feature tells. The program is that at path; empty means criu in PATH.
func Features(ctx context.Context, path string, names []string) []string {
	if path == "" {
		path = "criu"
	}
	const limit = 32 // more than CRIU knows
	var asked []string
	for _, name := range names[:min(len(names), limit)] {
		if featureName().MatchString(name) && !slices.Contains(asked, name) {
			asked = append(asked, name)
		}
	}
	has := make([]bool, len(asked))
	var checks sync.WaitGroup
	for i, name := range asked {
		checks.Go(func() {
			_, err := said(ctx, path, "check", "--feature", name)
			has[i] = err == nil
		})
	}
	checks.Wait()
	var have []string
	for i, name := range asked {
		if has[i] {
			have = append(have, name)
		}
	}
	return have
}

// Check has the CRIU at path look at the kernel (criu check), and gives what it says of it, in one line.
func Check(ctx context.Context, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	out, err := Command(ctx, path, append([]string{"check"}, args...)...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil && text == "" {
		text = err.Error()
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "Error") {
			return strings.TrimSpace(line), err
		}
	}
	return text[strings.LastIndexByte(text, '\n')+1:], err
}

// said is output, of a program that says the same each time; see [criu.Said].
func said(ctx context.Context, path string, args ...string) (string, error) {
	return criu.Said(path, args, func() (string, error) { return output(ctx, path, args...) })
}

// attempts are how often a program is run that is killed, which says nothing of the host.
const attempts = 3

// output runs a program and gives what it printed on standard output.
func output(ctx context.Context, path string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var exit *exec.ExitError
	var out []byte
	var err error
	for range attempts {
		out, err = Command(ctx, path, args...).Output()
		if err == nil {
			return string(out), nil
		}
		exit = nil
		if killed := errors.As(err, &exit) && !exit.Exited(); !killed || ctx.Err() != nil {
			break
		}
	}
	if exit != nil && len(exit.Stderr) > 0 {
		return "", fmt.Errorf("run %s %s: %w: %s", path, strings.Join(args, " "), err, firstLine(exit.Stderr))
	}
	return "", fmt.Errorf("run %s %s: %w", path, strings.Join(args, " "), err)
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}
