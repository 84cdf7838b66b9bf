package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	"github.com/cryo-project/cryo/runtime/runc"
)

// runtimeNames are the names under which containerd starts cryo's shim.
var runtimeNames = []string{"io.containerd.cryo.v1", "io.containerd.runc.cryo.v1"}

// shimName is the program behind them, and possibly behind other names (CRI's runtime_path, a link in containerd's PATH).
const shimName = "containerd-shim-cryo-v1"

// connect reaches containerd. The context returned carries the namespace.
func (a *app) connect(ctx context.Context) (context.Context, *containerd.Client, error) {
	const patience = 10 * time.Second
	// A dial of our own fails at once where containerd's client would try until its timeout.
	path := strings.TrimPrefix(a.address, "unix://")
	config, err := a.config()
	if err != nil {
		return ctx, nil, err
	}
	wait := time.Duration(config.Containerd.Patience) * time.Second
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", path)
	if err != nil {
		return ctx, nil, &daemonError{address: a.address, err: err}
	}
	_ = conn.Close()
	c, err := containerd.New(path, containerd.WithDefaultNamespace(a.namespace), containerd.WithTimeout(patience),
		containerd.WithExtraDialOpts([]grpc.DialOption{grpc.WithChainUnaryInterceptor(away{socket: path, patience: wait, say: a.say}.unary, traceCall)}))
	if err != nil {
		return ctx, nil, &daemonError{address: a.address, err: err}
	}
	return namespaces.WithNamespace(ctx, a.namespace), c, nil
}

// find gives the container with an id, or else the one that nerdctl calls by this name.
func (a *app) find(ctx context.Context, c *containerd.Client, name string) (containerd.Container, error) {
	container, err := c.LoadContainer(ctx, name)
	if err == nil {
		return container, nil
	}
	if !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
		return nil, fmt.Errorf("find container %s: %w", name, err)
	}
	named, err := c.Containers(ctx, fmt.Sprintf("labels.%q==%s", nerdctlName, strconv.Quote(name)))
	if err != nil {
		return nil, fmt.Errorf("find container %s: %w", name, err)
	}
	switch len(named) {
	case 0:
		return nil, &noContainerError{name: name, namespace: a.namespace}
	case 1:
		return named[0], nil
	}
	return nil, fmt.Errorf("find container %s: %d containers have this name, use an id: %w", name, len(named), errdefs.ErrInvalidArgument)
}

// nerdctlName is the label with the name that a user gave to nerdctl.
const nerdctlName = "nerdctl/name"

const (
	nerdctl    = "nerdctl"
	kubernetes = "Kubernetes"
)

// madeBy tells which client made a container, from its labels. nerdctl and Kubernetes keep files for their containers, which only they remove. It gives ""
// for all other clients.
func madeBy(labels map[string]string) string {
	switch {
	case labels[nerdctlName] != "":
		return nerdctl
	case labels["io.cri-containerd.kind"] != "":
		return kubernetes
	}
	return ""
}

// ourShim tells whether cryo's shim runs a task: by the runtime's name, or where another name leads to it, by the program
// that is the parent of the task's first process.
func ourShim(runtime string, pid uint32) bool {
	if slices.Contains(runtimeNames, runtime) || filepath.Base(runtime) == shimName {
		return true
	}
	parent, err := runc.Parent(int(pid))
	if err != nil {
		return false
	}
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", parent))
	return err == nil && filepath.Base(strings.TrimSuffix(exe, " (deleted)")) == shimName
}
