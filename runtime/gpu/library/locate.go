package library

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
)

// File is the library's name.
const File = "libcryo-gpu.so"

// Variable is that of the environment which says where the library is.
const Variable = "CRYO_GPU_LIBRARY"

// Lib is the library's file on this host.
type Lib struct {
	Path   string
	Digest digest.Digest // of its bytes; a restored process has the library it was saved with
}

// Locate finds the library: where $CRYO_GPU_LIBRARY says, or beside cryo's programs as they are installed or built. programs is their directory; empty: this program's.
func Locate(programs string) (Lib, error) {
	paths := []string{os.Getenv(Variable)}
	if paths[0] == "" {
		if programs == "" {
			self, err := os.Executable()
			if err != nil {
				return Lib{}, noLibraryError(err)
			}
			programs = filepath.Dir(self)
		}
		paths = []string{filepath.Join(programs, "..", "lib", "cryo", File), filepath.Join(programs, File)}
	}
	for _, path := range paths {
		sum, err := sum(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return Lib{}, noLibraryError(err, path)
		}
		return Lib{Path: path, Digest: sum}, nil
	}
	return Lib{}, noLibraryError(fs.ErrNotExist, paths...)
}

func sum(path string) (digest.Digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return "", errors.Join(err, fmt.Errorf("%s is not a file", path))
	}
	d := digest.SHA256.Digester()
	if _, err := io.Copy(d.Hash(), f); err != nil {
		return "", err
	}
	return d.Digest(), nil
}
