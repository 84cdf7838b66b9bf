package restore

import (
	"encoding/csv"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/worker"
)

// replaceMounts gives bind mounts of the specification other sources and returns their destinations.
func replaceMounts(spec *specs.Spec, replace []worker.Mount) (destinations []string, err error) {
	for _, r := range replace {
		found := false
		var have []string
		for i, m := range spec.Mounts {
			if !trust.IsBindMount(m) {
				continue
			}
			have = append(have, m.Destination)
			if filepath.Clean(m.Destination) == r.Destination {
				spec.Mounts[i].Source = r.Source
				destinations = append(destinations, m.Destination)
				found = true
			}
		}
		if !found {
			hint := "it has none at all: leave --mount out"
			if len(have) > 0 {
				hint = "it has bind mounts at " + strings.Join(have, ", ")
			}
			return nil, failure.New(errdefs.ErrInvalidArgument, hint, "the snapshot has no bind mount at %s", r.Destination)
		}
	}
	return destinations, nil
}

// ParseMount reads type=bind,src=PATH,dst=PATH, in the words that ctr, nerdctl and Docker have for it, or SRC:DST.
func ParseMount(s string) (worker.Mount, error) {
	var r worker.Mount
	if src, dst, is := strings.Cut(s, ":"); is && filepath.IsAbs(src) && filepath.IsAbs(dst) && !strings.ContainsAny(s, "=,") {
		return worker.Mount{Source: src, Destination: filepath.Clean(dst)}, nil
	}
	fields, err := csv.NewReader(strings.NewReader(s)).Read()
	if err != nil {
		return r, errors.New("is not a list of key=value")
	}
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "type":
			if value != "bind" {
				return r, fmt.Errorf("type is %q, and only bind mounts have a source to give", value)
			}
		case "src", "source":
			r.Source = value
		case "dst", "destination", "target":
			r.Destination = filepath.Clean(value)
		case "options", "ro", "readonly", "bind-propagation":
			return r, fmt.Errorf("%s cannot be changed: a restored mount keeps the options it had", key)
		default:
			return r, fmt.Errorf("unknown key %q", key)
		}
	}
	if !filepath.IsAbs(r.Source) || !filepath.IsAbs(r.Destination) {
		return r, errors.New("src and dst must be absolute paths")
	}
	return r, nil
}
