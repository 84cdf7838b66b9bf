package save

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/registry"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/daemon"
	"github.com/cryo-project/cryo/shim/restore"
	"github.com/cryo-project/cryo/shim/worker"
)

// Serve runs the checkpoint process; package worker has the messages.
func Serve(c config.Config) error {
	_ = os.WriteFile("/proc/self/comm", []byte("cryo-checkpoint"), 0) // for ps
	restore.FindHome()
	return worker.ServeCheckpoint(worker.Descriptor, func(ctx context.Context, r worker.Request, shim *worker.Shim) (*worker.Taken, []string, error) {
		v := &serving{config: c, request: r, shim: shim}
		if r.Checkpoint.Order != nil {
			return v.obey(ctx)
		}
		return v.send(ctx)
	})
}

// serving is what this process is asked for.
type serving struct {
	config  config.Config
	request worker.Request
	shim    *worker.Shim
}

// take takes a snapshot. Before that, check may refuse it.
func (v *serving) take(ctx context.Context, o Options, check func() error) (*Result, error) {
	c, r := v.config, v.request
	ctx, client, err := daemon.Connect(ctx, daemon.Options{Address: r.Address, Namespace: r.Namespace, Patience: time.Duration(c.Containerd.Patience) * time.Second, Trace: true})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := check(); err != nil {
		tell(ctx, client, o, nil, err)
		return nil, err
	}
	s, err := daemon.OpenStore(c, r.Address)
	if err != nil {
		return nil, err
	}
	return snapshot(ctx, client, v.shim, s, o)
}

// send takes a snapshot where a container's annotation wants it. The host's configuration decides whether it may. This host keeps none.
func (v *serving) send(ctx context.Context) (_ *worker.Taken, warnings []string, err error) {
	c, r := v.config, v.request.Checkpoint
	ref, err := reference(r.To, r.Names, time.Now())
	if err != nil {
		return nil, nil, err
	}
	o := Options{
		Config: c, Address: v.request.Address, Container: v.request.ID, Ref: ref, LeaveRunning: true, Discard: true, Logs: r.Work,
		ReadyTimeout:   time.Duration(r.ReadyTimeout * float64(time.Second)),
		TCPEstablished: r.TCPEstablished, FileLocks: r.FileLocks, ExternalUnixSockets: r.ExternalUnixSockets, Compression: "zstd",
		Push:  &registry.Options{PlainHTTP: c.Checkpoint.Plain(ref), DockerConfig: c.Checkpoint.Credentials, Hosts: c.Registry.Hosts},
		Hooks: restore.Hooks{Warn: func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }},
	}
	result, err := v.take(ctx, o, func() error {
		if c.Checkpoint.Allows(ref) {
			return nil
		}
		return failure.New(errdefs.ErrPermissionDenied, "add its registry, or the beginning of its repository, to repositories under [checkpoint] in /etc/cryo/config.toml",
			"checkpoint-to: the configuration does not allow a container's snapshot to be sent to %s by its annotation", ref).By("checkpoint-to")
	})
	if err != nil {
		return nil, warnings, err
	}
	return &worker.Taken{Reference: result.Reference, Digest: result.Digest, Size: result.Size}, warnings, nil
}

// reference returns what an annotation names, in full. A tag that it leaves out is made of names, which become shorter where they must, and of the time.
func reference(to string, names []string, now time.Time) (string, error) {
	last := to[strings.LastIndex(to, "/")+1:]
	if !strings.ContainsAny(last, ":@") && last != "" {
		to += ":" + tag(names, now)
	}
	full, err := store.Normalize(to)
	switch {
	case err != nil:
		return "", fmt.Errorf("annotation %s: %w", worker.CheckpointAnnotation, err)
	case !strings.Contains(full, "/"), strings.Contains(full, "@"):
		return "", failure.New(errdefs.ErrInvalidArgument, "write REPOSITORY or REPOSITORY:TAG", "annotation %s=%q names a digest, which the snapshot has not yet", worker.CheckpointAnnotation, to)
	}
	return full, nil
}

// maxTag is how long a tag may be. Source: OCI distribution specification, "Pulling manifests".
const maxTag = 128

// tag makes a tag of names and a time, in UTC.
func tag(names []string, now time.Time) string {
	const layout = "20060102t150405.000000"
	name := strings.TrimLeft(restore.Plain(strings.Join(names, "-"), '-'), "-.")
	name = name[:min(len(name), maxTag-len(layout)-1)]
	return cmp.Or(name, "snapshot") + "-" + now.UTC().Format(layout)
}
