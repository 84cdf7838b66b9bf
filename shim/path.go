package shim

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cryo-project/cryo/runtime/guard"
	"github.com/cryo-project/cryo/shim/config"
)

// pathMu guards this process's PATH: the containers of a pod may change it side by side.
var pathMu sync.Mutex

// giveCRIU has runc find cryo-guard where it looks for criu, which becomes the CRIU to use (see package guard), and CRIU where it looks for tar: in
// PATH, which they inherit. It is done before each dump and restore, and not when the shim starts: a container that is neither dumped nor restored must not
// wait for a program that it does not need. It gives the CRIU to use.
func (s *service) giveCRIU() (criu string, err error) {
	if criu, err = s.config.CheckCRIU(); err != nil {
		return "", err
	}
	program, err := guard.Program("")
	if err != nil {
		return "", err
	}
	if err := guard.AwaitProgram(context.Background(), program); err != nil { // not while a container is frozen
		return "", err
	}
	pathMu.Lock()
	defer pathMu.Unlock()
	if err := config.ExportPath(criu); err != nil {
		return "", err
	}
	dir, err := guard.LinkPrograms(program)
	if err != nil {
		return "", err
	}
	path := os.Getenv("PATH")
	if path == dir || strings.HasPrefix(path, dir+string(filepath.ListSeparator)) {
		return criu, nil
	}
	return criu, os.Setenv("PATH", dir+string(filepath.ListSeparator)+path)
}
