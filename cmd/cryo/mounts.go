package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cryo-project/cryo/shim/restorer"
)

// parseMount reads type=bind,src=PATH,dst=PATH, in the words that ctr, nerdctl and Docker have for it, or SRC:DST.
func parseMount(s string) (restorer.Mount, error) {
	var r restorer.Mount
	if src, dst, is := strings.Cut(s, ":"); is && filepath.IsAbs(src) && filepath.IsAbs(dst) && !strings.ContainsAny(s, "=,") {
		return restorer.Mount{Source: src, Destination: filepath.Clean(dst)}, nil
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
