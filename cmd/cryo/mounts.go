package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/fit"
)

// replacement gives a bind mount of a container another source.
type replacement struct{ source, destination string }

// parseMount reads type=bind,src=PATH,dst=PATH, in the words that ctr, nerdctl and Docker have for it.
func parseMount(s string) (replacement, error) {
	var r replacement
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
			r.source = value
		case "dst", "destination", "target":
			r.destination = filepath.Clean(value)
		case "options", "ro", "readonly", "bind-propagation":
			return r, fmt.Errorf("%s cannot be changed: a restored mount keeps the options it had", key)
		default:
			return r, fmt.Errorf("unknown key %q", key)
		}
	}
	if !filepath.IsAbs(r.source) || !filepath.IsAbs(r.destination) {
		return r, errors.New("src and dst must be absolute paths")
	}
	return r, nil
}

// noMountError says that the snapshot has no such mount. Its kind is InvalidArgument.
type noMountError struct {
	destination string
	have        []string
}

func (e *noMountError) Error() string {
	return fmt.Sprintf("the snapshot has no bind mount at %s", e.destination)
}

func (e *noMountError) Hint() string {
	if len(e.have) == 0 {
		return "it has none at all: leave --mount out"
	}
	return "it has bind mounts at " + strings.Join(e.have, ", ")
}

func (e *noMountError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// replaceMounts gives bind mounts of the specification other sources and returns their destinations.
func replaceMounts(spec *specs.Spec, replace []replacement) (destinations []string, err error) {
	for _, r := range replace {
		found := false
		var have []string
		for i, m := range spec.Mounts {
			if !fit.IsBind(m) {
				continue
			}
			have = append(have, m.Destination)
			if filepath.Clean(m.Destination) == r.destination {
				spec.Mounts[i].Source = r.source
				destinations = append(destinations, m.Destination)
				found = true
			}
		}
		if !found {
			return nil, &noMountError{destination: r.destination, have: have}
		}
	}
	return destinations, nil
}
