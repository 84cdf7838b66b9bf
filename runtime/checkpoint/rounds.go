package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Rounds are those of a pre-dump: memory is dumped while the container runs, and each dump after the first has only what was written to
// since. CRIU stops the processes for as long as it takes to make lists of their memory, and lets them go before it sends it.
type Rounds struct {
	Count int
	Dir   string // where directories for their images are made
	// Pages gives the socket over which CRIU shall send the pages of the next round, to somebody who knows those of all rounds.
	Pages func() (*os.File, error)
}

// rounds takes the rounds, and makes the last the parent of the dump.
func (s *sequence) rounds(ctx context.Context) error {
	if s.Rounds == nil || s.Frozen {
		return nil
	}
	s.frozen = true // where CRIU is ended, the cgroup that it has frozen stays so
	before := ""
	for n := range s.Rounds.Count {
		images := filepath.Join(s.Rounds.Dir, fmt.Sprintf("round-%d", n+1))
		if err := os.Mkdir(images, 0o700); err != nil {
			return fmt.Errorf("make a directory for a round: %w", err)
		}
		if err := s.round(ctx, images, before); err != nil {
			return fmt.Errorf("round %d of the pre-dump: %w", n+1, err)
		}
		before = images
	}
	s.frozen = false
	var err error
	s.Dump.Parent, err = relative(s.Dump.Images, before)
	return err
}

func (s *sequence) round(ctx context.Context, images, before string) error {
	dump := s.Dump
	dump.Images, dump.PreDump, dump.Exit = images, true, false
	var err error
	if dump.Parent, err = relative(images, before); err != nil {
		return err
	}
	if dump.Pages, err = s.Rounds.Pages(); err != nil {
		return err
	}
	defer dump.Pages.Close()
	return s.Checkpoint(ctx, dump)
}

// relative gives the way from one directory to another, as runc wants it, and CRIU goes: by a symbolic link in the first.
func relative(from, to string) (string, error) {
	if to == "" {
		return "", nil
	}
	from, err := filepath.EvalSymlinks(from)
	if err == nil {
		to, err = filepath.EvalSymlinks(to)
	}
	var path string
	if err == nil {
		path, err = filepath.Rel(from, to)
	}
	if err != nil {
		return "", fmt.Errorf("name the round before: %w", err)
	}
	return path, nil
}
