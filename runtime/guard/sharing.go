package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
)

// sharingFile is in the bundle of a container whose processes share memory, see [ShareMemory].
const sharingFile = "cryo-share-memory"

// ShareMemory decides whether the processes of the container with this bundle share memory when CRIU has restored them: the kernel keeps one copy of pages with equal contents (KSM), their own and
// those of all other processes that share memory on this host. A process that writes to such a page gets a copy. This holds for what they fork and execute, too.
func ShareMemory(bundle string, share bool) error {
	path := filepath.Join(bundle, sharingFile)
	var err error
	if share {
		err = os.WriteFile(path, nil, 0o600)
	} else if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("write into the bundle whether memory is shared: %w", err)
	}
	return nil
}

// shareAsDecided has this process share memory if [ShareMemory] has decided so. CRIU, which this process becomes, inherits that, and so do the processes that CRIU makes. The shim, runc and what they
// start otherwise do not. Source: Linux, kernel/sys.c, PR_SET_MEMORY_MERGE; mm/ksm.c, ksm_fork and ksm_execve.
func shareAsDecided(bundle string) error {
	if _, err := os.Stat(filepath.Join(bundle, sharingFile)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("look whether memory is shared: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_MEMORY_MERGE, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("share memory: %w", os.NewSyscallError("prctl", err))
	}
	return nil
}

// sharingDir is where the kernel shows and takes settings of its search for equal pages. Source: Linux, Documentation/admin-guide/mm/ksm.rst.
const sharingDir = "sys/kernel/mm/ksm"

// SharingSupported returns an error if processes cannot share memory on this host (kind NotImplemented), or if the kernel does not look for equal pages at present (kind FailedPrecondition). root is that of /sys.
func SharingSupported(root string) error {
	const without = "set share-memory under [restore] in /etc/cryo/config.toml to false, or install a kernel with CONFIG_KSM, Linux 6.9 or newer"
	run, err := os.ReadFile(filepath.Join(root, sharingDir, "run"))
	if err != nil {
		return failure.New(errdefs.ErrNotImplemented, without, "the kernel cannot share equal memory: %w", err)
	}
	if err := unix.Prctl(unix.PR_GET_MEMORY_MERGE, 0, 0, 0, 0); err != nil {
		return failure.New(errdefs.ErrNotImplemented, without, "the kernel does not let processes ask for shared memory: %w", os.NewSyscallError("prctl", err))
	}
	if is := strings.TrimSpace(string(run)); is != "1" {
		return failure.New(errdefs.ErrFailedPrecondition, "echo 1 >/sys/kernel/mm/ksm/run", "the kernel does not look for equal memory: /sys/kernel/mm/ksm/run is %q", is)
	}
	return nil
}
