package main

import (
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/shim/take"
)

func TestCheckPreDump(t *testing.T) {
	for n, want := range map[string]bool{"0": true, "1": true, "16": true, "17": false, "-1": false} {
		f := checkpointFlags{Options: take.Options{Ref: "a:1", Compression: "none"}, segmentSize: "1MiB"}
		cmd := newCheckpoint(&app{})
		if err := cmd.Flags().Set("pre-dump", n); err != nil {
			t.Fatal(err)
		}
		f.PreDump, _ = cmd.Flags().GetInt("pre-dump")
		if err := f.check(); (err == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s rounds: %v", n, err)
		}
	}
}

func TestCheckSegmentSize(t *testing.T) {
	for text, want := range map[string]bool{"1MiB": true, "8GiB": true, "512KiB": false, "3MiB": false, "16GiB": false} {
		f := checkpointFlags{Options: take.Options{Ref: "a:1", Compression: "none"}, segmentSize: text}
		if err := f.check(); (err == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
