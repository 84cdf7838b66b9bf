package warm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/store"
)

// Dir is where the prewarmed snapshots of a store are. Its methods may be called from several goroutines and processes at once.
type Dir struct{ path string }

// New gives the directory that belongs to the store under root. Nothing is made yet.
func New(root string) *Dir { return &Dir{path: filepath.Join(root, "warm")} }

// Size is how much a snapshot takes, in bytes.
type Size struct {
	Memory int64 `json:"memory"`
	Disk   int64 `json:"disk"` // of the blobs that were fetched for it; 0: they were in the store before
}

// Info describes a prewarmed snapshot.
type Info struct {
	Reference string        `json:"reference"` // by which it was prewarmed last
	Digest    digest.Digest `json:"digest"`    // of its manifest
	Size
	Created time.Time `json:"created"`
	Used    time.Time `json:"-"` // last; that of the lock's file
}

// names of what is in an entry
const (
	lockName   = "lock"
	infoName   = "entry.json"
	blobsName  = "blobs"
	memoryName = "memory"
)

// unfinished begins the name of what is being made or removed.
const unfinished = "new-"

func (d *Dir) entry(dg digest.Digest) string { return filepath.Join(d.path, dg.Encoded()) }

// List gives all prewarmed snapshots, the least recently used first, and clears away what somebody left who died.
func (d *Dir) List() ([]Info, error) {
	if is, err := d.mounted(); err != nil || !is {
		return nil, err
	}
	f, err := os.OpenFile(d.lockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("list prewarmed snapshots: %w", err)
	}
	defer f.Close()
	if ok, err := store.TryLock(f, unix.LOCK_EX); err != nil {
		return nil, err
	} else if ok { // else somebody is at work, and has cleared already
		if err := d.sweep(); err != nil {
			return nil, err
		}
		all, err := d.list()
		if err == nil && len(all) == 0 {
			err = d.unmount()
		}
		return all, err
	}
	return d.list()
}

func (d *Dir) list() ([]Info, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, fmt.Errorf("list prewarmed snapshots: %w", err)
	}
	var all []Info
	for _, e := range entries {
		if digest.NewDigestFromEncoded(digest.SHA256, e.Name()).Validate() != nil {
			continue
		}
		info, err := readInfo(filepath.Join(d.path, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone meanwhile
		} else if err != nil {
			return nil, fmt.Errorf("list prewarmed snapshots: %w", err)
		}
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int { return a.Used.Compare(b.Used) })
	return all, nil
}

func readInfo(entry string) (Info, error) {
	var i Info
	data, err := os.ReadFile(filepath.Join(entry, infoName))
	if err != nil {
		return i, err
	}
	if err := json.Unmarshal(data, &i); err != nil {
		return i, fmt.Errorf("read %s: %w", filepath.Join(entry, infoName), err)
	}
	lock, err := os.Stat(filepath.Join(entry, lockName))
	if err != nil {
		return i, err
	}
	i.Used = lock.ModTime()
	return i, nil
}

// writeInfo replaces an entry's description.
func writeInfo(entry string, i Info) error {
	data, err := json.Marshal(i)
	if err != nil {
		return err
	}
	path := filepath.Join(entry, infoName)
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

func (d *Dir) lockPath() string { return d.path + ".lock" }

// lock has nobody else add or remove.
func (d *Dir) lock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(d.lockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		if err = store.Lock(ctx, f, unix.LOCK_EX); err == nil {
			return f, nil
		}
		f.Close()
	}
	return nil, fmt.Errorf("wait for another cryo prewarm: %w", err)
}

// sweep removes what nobody will finish. The lock is held.
func (d *Dir) sweep() error {
	entries, err := os.ReadDir(d.path)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unfinished) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(d.path, e.Name())))
		}
	}
	if err != nil {
		return fmt.Errorf("clear away what is left of a prewarm: %w", err)
	}
	return nil
}
