package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/store"
)

// record is the file with what this service has prewarmed, or was about to. Nothing else is removed.
type record struct {
	path string
	Own  []owned `json:"own"`
}

type owned struct {
	Ref     string `json:"reference"` // normalised
	Fetched bool   `json:"fetched"`   // the store did not have this name before
}

// openRecord reads the record of a root. One that is not there is empty.
func openRecord(root string) (*record, error) {
	r := &record{path: filepath.Join(root, "node.json")}
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return nil, failure.New(errdefs.ErrDataLoss, "remove the file, and with cryo prewarm rm what is not wanted any more", "read the record of what is prewarmed, %s: %v", r.path, err)
	}
	return r, nil
}

func (r *record) has(ref string) bool {
	return slices.ContainsFunc(r.Own, func(o owned) bool { return o.Ref == ref })
}

func (r *record) add(o owned) error {
	if r.has(o.Ref) {
		return nil
	}
	return r.write(append(slices.Clone(r.Own), o))
}

func (r *record) drop(ref string) error {
	return r.write(slices.DeleteFunc(slices.Clone(r.Own), func(o owned) bool { return o.Ref == ref }))
}

func (r *record) write(own []owned) error {
	data, err := json.Marshal(record{Own: own})
	if err == nil {
		err = store.ReplaceFile(r.path, store.Bytes(data))
	}
	if err != nil {
		return fmt.Errorf("write the record of what is prewarmed: %w", err)
	}
	r.Own = own
	return nil
}

// lock has no second service work with this root, until the file is closed.
func lock(root string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(root, "node.lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	switch ok, err := store.TryLock(f, unix.LOCK_EX); {
	case err != nil:
		f.Close()
		return nil, err
	case !ok:
		f.Close()
		return nil, failure.New(errdefs.ErrFailedPrecondition, "end the other one: as a pod of a DaemonSet, or as the unit cryo-node", "cryo node runs already with the root %s", root)
	}
	return f, nil
}
