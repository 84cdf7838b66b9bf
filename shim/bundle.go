package shim

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/criu"
	"github.com/cryo-project/cryo/runtime/runc"
)

const (
	specFile  = "config.json"
	criuFile  = "criu.conf"  // CRIU's options, written anew before each dump and restore
	ownedFile = "cryo-owned" // names the directory that is the shim's to remove
	dumpFile  = "cryo-dump"  // names CRIU's work directory while a dump is under way

	restoreFile = "cryo-restore" // names CRIU's work directory while a restore is under way
)

// bundle is what of a container's bundle matters to a checkpoint.
type bundle struct {
	dir         string
	mark        string // of [runc.MarkAnnotation]
	cgroupsPath string
	// ownCRIUConfig is the CRIU configuration the container's creator has named, if any.
	ownCRIUConfig string
	gpus          gpus // what the specification had when the bundle was opened
	asked         restoreWish
	asksNoRing    bool          // see [refuseRing]
	whenReady     time.Duration // see there
	written       []byte        // the specification as its client wrote it, where a restore is asked for
}

func (b bundle) criuConfig() string { return filepath.Join(b.dir, criuFile) }

// openBundle reads the bundle's specification and points CRIU's configuration at a file in the bundle. runc keeps
// annotations from creation on, so this must be done for every container: any may be checkpointed later. allows is that of [askedBy].
func openBundle(dir string, allows func(image string) bool) (bundle, error) {
	b := bundle{dir: dir}
	path := filepath.Join(dir, specFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return b, fmt.Errorf("read the bundle: %w", err)
	}
	// Only what is changed is written anew: the specification may hold what this package's types do not know. And only what is
	// needed is decoded: every container waits for this, and all of specs.Spec takes a millisecond.
	var spec map[string]json.RawMessage
	if err := json.Unmarshal(data, &spec); err != nil {
		return b, fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	if spec == nil {
		return b, fmt.Errorf("read the bundle's %s: it is null: %w", specFile, errdefs.ErrInvalidArgument)
	}
	var known struct {
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			CgroupsPath string              `json:"cgroupsPath"`
			Devices     []specs.LinuxDevice `json:"devices"`
		} `json:"linux"`
		Mounts []specs.Mount `json:"mounts"`
	}
	if err := json.Unmarshal(data, &known); err != nil {
		return b, fmt.Errorf("read the bundle's %s: %w", specFile, err)
	}
	annotations := known.Annotations
	if annotations == nil {
		annotations = map[string]string{}
	}
	b.cgroupsPath = known.Linux.CgroupsPath
	if b.asked, err = askedBy(annotations, allows); err != nil {
		return b, err
	}
	if b.whenReady, err = whenReady(annotations); err != nil {
		return b, err
	}
	if b.asked.restores() {
		b.written = data
	}
	_, b.asksNoRing = annotations[criu.RingAnnotation]
	b.gpus = gpusOf(&specs.Spec{Linux: &specs.Linux{Devices: known.Linux.Devices}, Mounts: known.Mounts})
	own, ok := annotations[criu.Annotation]
	switch {
	case !ok:
		b.ownCRIUConfig = criu.RuncConfig
	case own != b.criuConfig():
		b.ownCRIUConfig = own
	}
	annotations[criu.Annotation] = b.criuConfig()
	b.mark = rand.Text()
	annotations[runc.MarkAnnotation] = b.mark
	if spec["annotations"], err = json.Marshal(annotations); err != nil {
		return b, err
	}
	if data, err = json.Marshal(spec); err != nil {
		return b, err
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		return b, fmt.Errorf("write the bundle's %s: %w", specFile, err)
	}
	return b, nil
}

// renew makes the bundle's directory, empty, where it is gone, as where an operator has removed containerd's state directory. runc writes its log there, and does nothing without.
func (b bundle) renew() error {
	if err := os.MkdirAll(b.dir, 0o711); err != nil {
		return fmt.Errorf("make the directory of the bundle again: %w", err)
	}
	return nil
}

// daemonPattern begins the name of every directory that containerd makes for a checkpoint image, and never removes
// after a restore.
const daemonPattern = "ctrd-checkpoint"

// isDaemons reports whether containerd made dir itself, where it would have made it.
func isDaemons(dir string) bool {
	parent := os.Getenv("XDG_RUNTIME_DIR")
	if parent == "" {
		parent = os.TempDir()
	}
	return strings.HasPrefix(filepath.Base(dir), daemonPattern) && filepath.Dir(dir) == filepath.Clean(parent)
}

// own writes down that dir is the shim's to remove, so that `delete` can do it for a dead shim.
func (b bundle) own(dir string) error {
	if err := os.WriteFile(filepath.Join(b.dir, ownedFile), []byte(dir), 0o600); err != nil {
		return fmt.Errorf("write down what to remove: %w", err)
	}
	return nil
}

// removeOwned removes the directory that was written down in the bundle, if any.
func removeOwned(bundle string) error {
	path := filepath.Join(bundle, ownedFile)
	dir, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if isDaemons(string(dir)) {
		if err := os.RemoveAll(string(dir)); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// begin writes into a file that a dump or a restore with CRIU's work directory work is under way, so that `delete` can end it for a dead
// shim. Until done, or this process has ended, nothing else is under way with that directory, so that a CRIU in it is this one's. done takes the record back, unless it is
// to stay.
func (b bundle) begin(file, work string) (done func(clean bool), err error) {
	if err := os.MkdirAll(work, 0o700); err != nil {
		return nil, fmt.Errorf("make CRIU's work directory: %w", err)
	}
	lock, err := lockWork(work)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(b.dir, file)
	if err := os.WriteFile(path, []byte(work), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("write down what is under way: %w", err), lock.Close())
	}
	return func(clean bool) {
		if clean {
			_ = os.Remove(path)
		}
		_ = lock.Close()
	}, nil
}

// lockWork locks CRIU's work directory. Its error is of kind Busy where another dump or restore is under way with the directory.
func lockWork(work string) (*os.File, error) {
	dir, err := os.Open(work)
	if err != nil {
		return nil, fmt.Errorf("open CRIU's work directory: %w", err)
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = dir.Close() // err says more
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, failure.New(failure.ErrBusy, "name another work directory, or none", "another dump or restore is under way with CRIU's work directory %s", work)
		}
		return nil, fmt.Errorf("lock CRIU's work directory: %w", err)
	}
	return dir, nil
}

// endBegun ends CRIU where the file written down in the bundle says that it is at work, and gives its work directory; empty if it is not.
func endBegun(bundle, file string) (work string, err error) {
	data, err := os.ReadFile(filepath.Join(bundle, file))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	work = string(data)
	switch lock, err := lockWork(work); {
	case errors.Is(err, fs.ErrNotExist): // its owner, the checkpoint process, may have ended
	case err != nil:
		return "", err // what is in it now is another's
	default:
		defer lock.Close()
	}
	return work, runc.EndDump(work)
}
