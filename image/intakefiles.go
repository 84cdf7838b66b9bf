package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cryo-project/cryo/image/format"
)

// newIntakeOfFiles takes in the pages files in dir.
func newIntakeOfFiles(ctx context.Context, dst BlobStore, dir string, maps []*format.Pagemap, pageSize int64, o PackOptions) (*Intake, error) {
	if report := o.Progress; report != nil {
		var total int64
		for _, m := range maps {
			total += m.Count * pageSize
		}
		o.Progress = func(_ string, done, _ int64) { report("pack", done, total) }
	}
	in, err := NewIntake(ctx, dst, dir, pageSize, o)
	if err != nil {
		return nil, err
	}
	in.spill.room = 0 // files can wait where they are
	in.hurry()
	for _, m := range maps {
		if err := in.takeFile(filepath.Join(dir, format.PagesFileName(m.Pages)), m); err != nil {
			in.Close()
			return nil, err
		}
	}
	if err := in.End(); err != nil {
		in.Close()
		return nil, err
	}
	return in, nil
}

func (in *Intake) takeFile(path string, m *format.Pagemap) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open pages: %w", err)
	}
	defer f.Close()
	if err := in.Begin(uint32(m.Pages)); err != nil {
		return err
	}
	for _, r := range m.Runs {
		if err := in.Pages(r.Addr, uint64(r.Count), io.NewSectionReader(f, r.First*in.pageSize, r.Count*in.pageSize)); err != nil {
			return err
		}
	}
	return nil
}
