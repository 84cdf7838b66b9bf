package arrival

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// A container whose segments are still being pulled has a file beside its command's working directory for each process that needs them. The process removes its own when it has all
// that it needs; the next command renames them where the one that pulled has been killed. Either can be done once, so that one of them has decided whether
// the container is whole, however long it takes.

// Expect makes the file of a process that will need segments, for the command with this working directory. who, without dots, is part of its name.
func Expect(work, who string) (path string, err error) {
	path = work + "." + who
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return "", fmt.Errorf("write down who needs segments: %w", err)
	}
	return path, nil
}

// givenUp is the end of the name of a file that stands for what is not to become whole any more.
const givenUp = ".given-up"

// GiveUp has no process that Expect was called for, by the command with this working directory, become whole, and tells whether there is one. It says the
// same again until [Forget].
func GiveUp(work string) (awaited bool, err error) {
	files, err := expected(work)
	for _, f := range files {
		if err := os.Rename(f, work+givenUp); errors.Is(err, fs.ErrNotExist) {
			continue // it has all meanwhile
		} else if err != nil {
			return false, fmt.Errorf("give up who needs segments: %w", err)
		}
		awaited = true
	}
	return awaited, err
}

// Forget removes what the command with this working directory has left of Expect, when nothing is left of its container.
func Forget(work string) error {
	files, err := expected(work)
	for _, f := range files {
		if gone := os.Remove(f); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, fmt.Errorf("forget who needs segments: %w", gone))
		}
	}
	return err
}

// expected lists the files of a command.
func expected(work string) (files []string, err error) {
	entries, err := os.ReadDir(filepath.Dir(work))
	if err != nil {
		return nil, fmt.Errorf("look who needs segments: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(work)+".") {
			files = append(files, filepath.Join(filepath.Dir(work), e.Name()))
		}
	}
	return files, nil
}

// settle says that a process has all that it needs, or that another for the same had it. An error: it is not to go on.
func settle(path string) error {
	err := os.Remove(path)
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Lstat(strings.TrimSuffix(path, filepath.Ext(path)) + givenUp)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			return failure.New(errdefs.ErrUnavailable, restoreAgain, "another command has given the container up, whose own has ended").Doing(doing)
		}
	}
	return fmt.Errorf("write down that all segments are here: %w", err)
}
