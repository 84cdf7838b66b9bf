package main

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/save"
)

func TestCheckSegmentSize(t *testing.T) {
	for text, want := range map[string]bool{"1MiB": true, "8GiB": true, "512KiB": false, "3MiB": false, "16GiB": false} {
		f := checkpointFlags{Options: save.Options{Ref: "a:1", Compression: "none"}, segmentSize: text}
		if err := f.check(); (err == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
