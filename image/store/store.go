package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"oras.land/oras-go/v2/content"

	"github.com/cryo-project/cryo/image"
)

var (
	_ image.BlobStore = (*Store)(nil)
	_ content.Storage = (*Store)(nil)
)

// Store is a local store of snapshots. Its methods may be called from several goroutines and processes at once.
type Store struct {
	root       string
	partialAge time.Duration // how long an interrupted download is kept for its next attempt

	// Changed is called when a name was added, moved or removed. nil: nothing is.
	Changed func(ctx context.Context)
}

func (s *Store) changed(ctx context.Context) {
	if s.Changed != nil {
		s.Changed(ctx)
	}
}

// Open opens the store under root, such as /var/lib/cryo, and creates it (directories 0700) if there is none. One on a read-only file system can be read.
func Open(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", root, err)
	}
	s := &Store{root: root, partialAge: 7 * 24 * time.Hour}
	switch err := s.checkLayout(); {
	case err == nil:
		err := s.makeDirs()
		if errors.Is(err, unix.EROFS) { // reading needs no more than there is
			err = nil
		}
		return s, err
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("open store %s: %w", root, mapError(root, err))
	}
	if err := s.create(); err != nil {
		return nil, fmt.Errorf("create store %s: %w", root, mapError(root, err))
	}
	return s, nil
}

// Root returns the directory that the store was opened with, as an absolute path.
func (s *Store) Root() string { return s.root }

// Layout returns the directory of the OCI image layout.
func (s *Store) Layout() string { return filepath.Join(s.root, "store") }

func (s *Store) blobs() string {
	return filepath.Join(s.root, "store", ocispec.ImageBlobsDir, "sha256")
}
func (s *Store) ingest() string    { return filepath.Join(s.root, "ingest") }
func (s *Store) partial() string   { return filepath.Join(s.root, "partial") }
func (s *Store) suspect() string   { return filepath.Join(s.root, "suspect") }
func (s *Store) prewarmed() string { return filepath.Join(s.root, "prewarmed") }
func (s *Store) work() string      { return filepath.Join(s.root, "work") }
func (s *Store) indexLock() string { return filepath.Join(s.root, "index.lock") }

// indexBackup is what index.json is.
func (s *Store) indexBackup() string { return filepath.Join(s.root, "index.backup.json") }
func (s *Store) opsLock() string     { return filepath.Join(s.root, "operations.lock") }

// pending exists while blobs wait for a collection that a running operation put off.
func (s *Store) pending() string { return filepath.Join(s.root, "collect.pending") }

func (s *Store) makeDirs() error {
	for _, dir := range []string{s.blobs(), s.ingest(), s.partial(), s.suspect(), s.prewarmed(), s.work()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create %s: %w", dir, mapError(s.root, err))
		}
	}
	return nil
}

// create makes an empty layout. oci-layout comes last: where it is, the rest is.
func (s *Store) create() error {
	if err := s.makeDirs(); err != nil {
		return err
	}
	unlock, err := lock(context.Background(), s.indexLock())
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Lstat(filepath.Join(s.Layout(), ocispec.ImageIndexFile)); errors.Is(err, fs.ErrNotExist) {
		if err := s.writeIndex(NewIndex()); err != nil {
			return err
		}
	}
	if err := ReplaceFile(filepath.Join(s.Layout(), ocispec.ImageLayoutFile), Bytes(LayoutFile())); err != nil {
		return err
	}
	// A new directory is there after a power failure when the one that it is in was synced.
	return errors.Join(SyncDir(filepath.Dir(s.blobs())), SyncDir(s.root))
}

// checkLayout reads oci-layout.
func (s *Store) checkLayout() error {
	path := filepath.Join(s.Layout(), ocispec.ImageLayoutFile)
	data, err := readLimited(path, 64<<10)
	if err != nil {
		return err
	}
	if err := CheckLayout(data); err != nil {
		return Corrupt(path, err)
	}
	return nil
}
