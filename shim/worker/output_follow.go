package worker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"
)

// LastLines returns the last n lines; all if n is negative.
func LastLines(text []byte, n int) []byte {
	if n < 0 {
		return text
	}
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1
	}
	return text[at:]
}

// pollTime is between two looks at what will change soon.
const pollTime = 50 * time.Millisecond

// FollowOutput writes what comes into the file of a bundle behind from, as [ReadOutput] gives it, and what comes into those that take its place, until all is kept.
func FollowOutput(ctx context.Context, to io.Writer, bundle string, from int64) error {
	f, err := os.Open(OutputPath(bundle))
	if err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("read output: %w", err)
	}
	for {
		_, ended := os.Stat(OutputPipe(bundle))
		next, missing := os.Stat(OutputPath(bundle))
		if _, err := io.Copy(to, f); err != nil {
			return fmt.Errorf("show output: %w", err)
		}
		own, err := f.Stat()
		if err != nil {
			return fmt.Errorf("read output: %w", err)
		}
		switch {
		case missing == nil && !os.SameFile(own, next): // nothing more comes into this one
			_ = f.Close()
			if f, err = os.Open(OutputPath(bundle)); err != nil {
				return fmt.Errorf("read output: %w", err)
			}
			continue
		case ended != nil:
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pollTime):
		}
	}
}
