package image

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/cryo-project/cryo/image/pages"
)

// pagesFiles keeps the pages files in a directory open for writing as long as they are needed: a snapshot may have more than a process may have open.
type pagesFiles struct {
	dir string

	mu    sync.Mutex // guards what follows
	files map[uint64]*pagesFile
}

type pagesFile struct {
	uses int      // takes that are still to come, and those not put back
	f    *os.File // nil: not open yet
}

// newPagesFiles counts with uses[id] calls of take and put for each file.
func newPagesFiles(dir string, uses map[uint64]int) *pagesFiles {
	p := &pagesFiles{dir: dir, files: make(map[uint64]*pagesFile, len(uses))}
	for id, n := range uses {
		p.files[id] = &pagesFile{uses: n}
	}
	return p
}

func (p *pagesFiles) take(id uint64) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	file := p.files[id]
	if file.f == nil {
		f, err := os.OpenFile(filepath.Join(p.dir, pages.FileName(id)), os.O_WRONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("open pages: %w", err)
		}
		file.f = f
	}
	return file.f, nil
}

// put closes the file after its last use.
func (p *pagesFiles) put(id uint64) error {
	p.mu.Lock()
	file := p.files[id]
	file.uses--
	var f *os.File
	if file.uses == 0 {
		f, file.f = file.f, nil
	}
	p.mu.Unlock()
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close pages: %w", err)
	}
	return nil
}

// close closes what is still open, after an error.
func (p *pagesFiles) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, file := range p.files {
		if file.f != nil {
			file.f.Close()
			file.f = nil
		}
	}
}
