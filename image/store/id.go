package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
)

// validID is what the file with a store's name has.
var validID = regexp.MustCompile(`^[A-Z2-7]{26}$`)

// ID returns the name of the store under root: random, made with the first working directory, and the same as long as there is the store. It does not depend on the device that
// the store is on, whose number another boot may change.
func ID(root string) (string, error) {
	data, err := readLimited(filepath.Join(root, "id"), 64)
	if err == nil && !validID.Match(data) {
		err = Corrupt(filepath.Join(root, "id"), errors.New("it is no name of a store"))
	}
	return string(data), err
}

// nameStore makes the file for [ID], if there is none, or one that is damaged.
func (s *Store) nameStore(ctx context.Context) error {
	if _, err := ID(s.root); err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
		return err
	}
	unlock, err := lock(ctx, s.indexLock())
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := ID(s.root); err == nil {
		return nil // another has made it
	}
	path := filepath.Join(s.root, "id")
	if i, err := os.Lstat(path); err == nil && !i.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", path)
	}
	return ReplaceFile(path, Bytes([]byte(rand.Text())))
}
