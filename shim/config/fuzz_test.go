package config

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

func FuzzParse(f *testing.F) {
	f.Add([]byte("root = '/r'\n[dump]\ntimeout = 5\n"))
	f.Add([]byte("root = 7"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse("config.toml", data)
		switch {
		case err != nil && !errors.Is(err, errdefs.ErrInvalidArgument):
			t.Error(err)
		case err == nil && !filepath.IsAbs(c.Root):
			t.Errorf("root %q", c.Root)
		}
	})
}
