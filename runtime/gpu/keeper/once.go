package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"

	"github.com/containerd/errdefs"
)

// ReadFacts asks a keeper that lives just for the answer; path is as in [Start]. It gives [MissingError] where there is no
// keeper, and [DriverError] where the driver cannot be used.
func ReadFacts(ctx context.Context, path string) (Facts, error) {
	path, err := find(path)
	if err != nil {
		return Facts{}, err
	}
	last := &tail{}
	command := exec.CommandContext(ctx, path, "facts")
	command.Dir, command.Stderr = "/", last
	out, err := command.Output()
	if ctx.Err() != nil {
		return Facts{}, fmt.Errorf("read GPU facts: %w", context.Cause(ctx))
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return Facts{}, fmt.Errorf("read GPU facts: %w", err)
	}
	line, noLine := newLines(bytes.NewReader(out)).next()
	if errors.Is(noLine, io.EOF) && err != nil {
		return Facts{}, &DiedError{How: err.Error(), Last: last.String()}
	}
	if noLine != nil {
		return Facts{}, fmt.Errorf("read GPU facts: %w", noLine)
	}
	if err == nil {
		var f Facts
		if err := decode(line, &f); err != nil {
			return Facts{}, fmt.Errorf("read GPU facts: %w", err)
		}
		return f, nil
	}
	a, err := decodeAnswer(line)
	switch {
	case err != nil:
		return Facts{}, fmt.Errorf("read GPU facts: %w", err)
	case a.Driver != nil:
		return Facts{}, a.Driver
	}
	return Facts{}, fmt.Errorf("read GPU facts: %s: %w", a.Error, errdefs.ErrInternal)
}
