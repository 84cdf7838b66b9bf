package restore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/worker"
)

// A trial restores a snapshot into a container beside the one of which it was taken, up to the first instruction of its processes, and removes that container. It goes the way of
// every restore: the restore process refuses when the shim asks for leave, and the command undoes what it has made, as where a user calls a restore off.

// errTried is the answer to a shim that asks whether the container of a trial may run.
var errTried = failure.New(errdefs.ErrAborted, "", "it was restored as a trial, and does not run")

// Trial returns the choices for a trial of a snapshot, which is complete in the local store and need have no name there.
func Trial(snapshot ocispec.Descriptor) worker.Choices {
	return worker.Choices{Trial: &snapshot, Pull: PullNever, Eager: true, Allow: []string{"all"}} // it may have again what its container has
}

const trialHint = "leave out --verify (or set verify = false under [dump] in /etc/cryo/config.toml), or restore the snapshot on another host to try it"

// CheckTrial refuses a container whose snapshot cannot be tried while the container exists, by its specification, its shim, and the name that the snapshot gets: the trial would
// touch what is the container's, or others' too.
func CheckTrial(spec *specs.Spec, shim int, c config.Trust, ref string) error {
	refuse := func(rule, text string, args ...any) error {
		return failure.New(errdefs.ErrFailedPrecondition, trialHint, rule+": the snapshot cannot be tried beside the container: "+text, args...).By(rule)
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace} {
		if path, has := criu.NamespaceIn(spec, kind); !has || path != "" {
			return refuse("verify-namespace", "it has no %s namespace of its own", kind)
		}
	}
	for _, m := range spec.Mounts {
		if !isShielded(m) {
			continue
		}
		if err := checkShield(m); err != nil {
			return refuse("verify-mount", "the bind mount %s: %w", m.Destination, err)
		}
	}
	if slices.ContainsFunc(spec.Mounts, isShielded) {
		own, err := os.Readlink("/proc/self/ns/mnt")
		theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", shim))
		if err := errors.Join(err, err2); err != nil || own != theirs {
			return refuse("verify-mount", "it has bind mounts, and this command is not in the mount namespace of its shim, %w", errors.Join(err, errdefs.ErrFailedPrecondition))
		}
	}
	j, err := NewJudging(c, config.Person, false)
	if err != nil {
		return err
	}
	if err := j.Judge([]string{ref}, "", nil, nil); err != nil {
		return refuse("verify-signature", "this host restores signed snapshots only, and it is signed when it has been tried: %w", err)
	}
	return nil
}

// mayRun answers a shim that asks whether the container may run, with the first of the reasons why it may not.
func (v *serving) mayRun(ctx context.Context, fenced, stands bool) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := v.prepared.pull.commit(); err != nil {
		return err
	}
	if v.isTrial() {
		v.tried.Store(true)
		return errTried
	}
	if v.together() != nil {
		if !fenced {
			return failure.New(errdefs.ErrFailedPrecondition, "end the containers of its pod and start them anew under the installed release", "the shim is of a release that cannot restore members of a group").By("group-shim")
		}
		_, err := v.report.Pass(ctx, worker.Reached{Step: worker.Restored})
		return err
	}
	if order := v.request.Order; order != nil && order.Pool && !stands {
		return failure.New(errdefs.ErrFailedPrecondition, "see that cryo and containerd's shim are of one release", "the shim is of a release that has no pools")
	}
	return nil
}

// errRan ends a trial whose container runs. Its shim must ask for leave before that, and has not.
var errRan = errors.New("the container of a trial runs: its shim has not asked whether it may")

// isTrial reports whether the snapshot is only tried.
func (v *serving) isTrial() bool {
	return v.request.Order != nil && v.request.Order.Choices.Trial != nil
}

// isShielded reports whether a mount is a bind mount of the host's, which a trial must not write to. CRIU opens files for writing, makes deleted ones again for a moment, and removes the
// second names that it has given to others, which a later restore needs.
func isShielded(m specs.Mount) bool {
	return trust.IsBindMount(m) && !slices.Contains(etcFiles, filepath.Clean(m.Destination))
}

// shieldedFile bounds a file that is copied for a trial, bytes.
const shieldedFile = 64 << 20

// checkShield returns why a trial could not have a mount without writing to its source.
func checkShield(m specs.Mount) error {
	info, err := os.Stat(m.Source)
	if err != nil {
		return err
	}
	if info.Mode().IsRegular() && info.Size() <= shieldedFile {
		return nil
	}
	if !info.IsDir() {
		return errors.New("it is neither a directory nor a small file, so that the trial cannot have one like it")
	}
	if strings.ContainsAny(m.Source, `:,\"`) {
		return errors.New("overlayfs takes no such path")
	}
	source, err := filepath.EvalSymlinks(m.Source)
	if err != nil {
		return err
	}
	below, err := mountinfo.GetMounts(func(i *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(i.Mountpoint, strings.TrimSuffix(source, "/")+"/"), false
	})
	if err == nil && len(below) > 0 {
		err = fmt.Errorf("%s is mounted in it, which the trial would not have", below[0].Mountpoint)
	}
	return err
}

// shield replaces the sources of bind mounts: a directory by an overlay over it, a file by a copy. Both are removed with the working directory.
func (m *making) shield(spec *specs.Spec) error {
	for i, at := range spec.Mounts {
		if !isShielded(at) {
			continue
		}
		dir := filepath.Join(m.work.Dir, "volumes", strconv.Itoa(i))
		shielded, err := shieldAt(dir, at)
		if err != nil {
			return fmt.Errorf("have something else than the bind mount %s for the trial: %w", at.Destination, err)
		}
		spec.Mounts[i].Source = shielded
	}
	return nil
}

func shieldAt(dir string, m specs.Mount) (source string, err error) {
	if err := checkShield(m); err != nil { // it may have changed
		return "", err
	}
	info, err := os.Stat(m.Source)
	if err != nil {
		return "", err
	}
	source = filepath.Join(dir, "is")
	if !info.IsDir() {
		return source, errors.Join(os.MkdirAll(dir, 0o700), fs.CopyFile(source, m.Source), likewise(source, info))
	}
	changes, work := filepath.Join(dir, "changes"), filepath.Join(dir, "work")
	for _, d := range []string{source, changes, work} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return "", err
		}
	}
	if err := likewise(changes, info); err != nil {
		return "", err
	}
	return source, unix.Mount("overlay", source, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", m.Source, changes, work))
}

// likewise sets the owner and the mode of a file to those of another. CRIU compares them.
func likewise(path string, as os.FileInfo) error {
	owner, ok := as.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("find the owner of %s: %w", as.Name(), errdefs.ErrInternal)
	}
	return errors.Join(os.Chown(path, int(owner.Uid), int(owner.Gid)), os.Chmod(path, as.Mode()))
}
