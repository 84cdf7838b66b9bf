package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"strconv"
	"strings"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/grpc"

	"github.com/cryo-project/cryo/image/failure"
)

// Options say which containerd, and how it is asked.
type Options struct {
	Address   string // of its socket
	Namespace string
	// Patience is how long calls that change nothing when they are repeated are repeated, where containerd goes away.
	Patience time.Duration
	// Trace logs each request, for debugging.
	Trace bool
}

// Connect reaches containerd. The context that it gives carries the namespace. An error is Unavailable, or PermissionDenied where the socket is not ours.
func Connect(ctx context.Context, o Options) (context.Context, *containerd.Client, error) {
	const patience = 10 * time.Second
	// A dial of our own fails at once where containerd's client would try until its timeout.
	socket := strings.TrimPrefix(o.Address, "unix://")
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "unix", socket)
	if err == nil {
		_ = conn.Close()
		dial := retries(o.Patience)
		if o.Trace {
			dial = append(dial, grpc.WithChainUnaryInterceptor(traceCall))
		}
		var c *containerd.Client
		if c, err = containerd.New(socket, containerd.WithDefaultNamespace(o.Namespace), containerd.WithTimeout(patience), containerd.WithExtraDialOpts(dial)); err == nil {
			return namespaces.WithNamespace(ctx, o.Namespace), c, nil
		}
	}
	if ctx.Err() != nil {
		return ctx, nil, fmt.Errorf("reach containerd at %s: %w", o.Address, context.Cause(ctx))
	}
	kind, hint := error(errdefs.ErrUnavailable), "see that containerd runs and that you may use its socket, or name it with --address"
	if errors.Is(err, fs.ErrPermission) {
		kind, hint = errdefs.ErrPermissionDenied, "run cryo as root (sudo): containerd's socket is root's"
	}
	return ctx, nil, failure.New(kind, hint, "reach containerd at %s: %v", o.Address, err)
}

// Find returns the container with an id, or else the one that nerdctl calls by this name. An error is NotFound, or InvalidArgument where several have the name.
func Find(ctx context.Context, c *containerd.Client, name string) (containerd.Container, error) {
	container, err := c.LoadContainer(ctx, name)
	if err == nil {
		return container, nil
	}
	if !errdefs.IsNotFound(err) && !errdefs.IsInvalidArgument(err) {
		return nil, fmt.Errorf("find container %s: %w", name, err)
	}
	named, err := c.Containers(ctx, fmt.Sprintf("labels.%q==%s", NameLabel, strconv.Quote(name)))
	if err != nil {
		return nil, fmt.Errorf("find container %s: %w", name, err)
	}
	switch len(named) {
	case 0:
		namespace, _ := namespaces.Namespace(ctx)
		return nil, failure.New(errdefs.ErrNotFound, "list them with ctr -n "+namespace+" containers ls, or name another namespace with --namespace",
			"find container %s: containerd's namespace %s has none of this name", name, namespace)
	case 1:
		return named[0], nil
	}
	return nil, fmt.Errorf("find container %s: %d containers have this name, use an id: %w", name, len(named), errdefs.ErrInvalidArgument)
}

// NameLabel is the label with the name that a user gave to nerdctl.
const NameLabel = "nerdctl/name"

// Clients that keep files for their containers. Only the client itself removes them.
const (
	Nerdctl    = "nerdctl"
	Kubernetes = "Kubernetes"
)

// MadeBy tells from a container's labels which of these clients has made it; empty: none of them.
func MadeBy(labels map[string]string) string {
	switch {
	case labels[NameLabel] != "":
		return Nerdctl
	case labels["io.cri-containerd.kind"] != "":
		return Kubernetes
	}
	return ""
}

// traceCall is a [grpc.UnaryClientInterceptor] that tells of a request to containerd.
func traceCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, o ...grpc.CallOption) error {
	start := time.Now()
	err := invoke(ctx, method, req, reply, cc, o...)
	e := log.G(ctx).WithFields(log.Fields{"service": path.Base(path.Dir(method)), "method": path.Base(method), "took": time.Since(start).Round(time.Microsecond)})
	if err != nil {
		e = e.WithError(err)
	}
	e.Debug("request to containerd")
	return err
}
