package failure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File has an error for a process whose request goes through containerd, which passes on nothing but kind and text. The process that asks makes it, empty, in a
// directory of its own. The one that fails writes the error into it before it answers.
const File = "cryo-failed.json"

// maxFile bounds what is read of a file, bytes.
const maxFile = 256 << 10

// Expect makes a directory's file, in place of the one of an earlier request.
func Expect(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, File), nil, 0o600); err != nil {
		return fmt.Errorf("expect an error: %w", err)
	}
	return nil
}

// Leave writes an error into a directory's file. e is an [Error], or has one in a field. Where it is not expected, it does nothing.
func Leave(dir string, e any) error {
	if dir == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(dir, File), os.O_WRONLY|os.O_TRUNC|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = errors.Join(json.NewEncoder(f).Encode(e), f.Close())
	}
	if err != nil {
		return fmt.Errorf("leave an error: %w", err)
	}
	return nil
}

// Find reads what was left in a directory's file into e, and tells whether anything was. Half of an error is none.
func Find(dir string, e any) bool {
	f, err := os.Open(filepath.Join(dir, File))
	if err != nil {
		return false
	}
	defer f.Close()
	return json.NewDecoder(io.LimitReader(f, maxFile)).Decode(e) == nil
}
