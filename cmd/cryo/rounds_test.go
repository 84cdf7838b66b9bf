package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/restore"
)

// sends plays CRIU, as of 4.2: it says that pages of a process are as they were, unless the numbers of their content are given.
func sends(conn net.Conn, unchanged uint64, content ...byte) error {
	const target, add, present, inParent = 7<<8 | 1, 6, 4 << 16, 1 << 16
	command := func(b []byte, code uint32, count, addr uint64) []byte {
		b = binary.NativeEndian.AppendUint32(b, code)
		b = binary.NativeEndian.AppendUint64(append(b, 0, 0, 0, 0), count)
		return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(b, addr), target)
	}
	page := uint64(os.Getpagesize())
	b := command(nil, 4, 0, 0)
	if unchanged > 0 {
		b = command(b, add|inParent, unchanged, 0x10000)
	}
	for i, c := range content {
		b = command(b, add|present, 1, 0x10000+(unchanged+uint64(i))*page)
		b = append(b, bytes.Repeat([]byte{c}, int(page))...)
	}
	if _, err := conn.Write(command(b, 0x1023, 0, 0)); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	if err == nil {
		_, err = conn.Read(make([]byte, 4))
	}
	return err
}

// takesInRounds begins to take in so many rounds.
func takesInRounds(t *testing.T, want int) (m *memory, dir, images string) {
	t.Helper()
	s, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, images = t.TempDir(), t.TempDir()
	client, err := checkpoint.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	client.Options = checkpoint.Options{Pages: true, PreDump: want}
	m, err = (&app{}).takeIn(t.Context(), s, client, images, t.TempDir(), checkpointFlags{sender: &sender{}, segmentBytes: 1 << 20, preDump: want})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.close()
		_ = client.Close()
	})
	go func() { _, _ = client.Frozen(context.Background()) }()
	return m, dir, images
}

// round plays a round, or the dump.
func round(t *testing.T, connect func(context.Context) (*os.File, error), unchanged uint64, content ...byte) error {
	t.Helper()
	f, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return sends(conn, unchanged, content...)
}

func TestRoundsAreTakenIn(t *testing.T) {
	m, dir, images := takesInRounds(t, 2)
	shim, _, err := checkpoint.Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(round(t, shim.Round, 0, 1, 2, 3), round(t, shim.Round, 2, 4), round(t, shim.Pages, 3, 5)); err != nil {
		t.Fatal(err)
	}
	intake, err := m.arrived()
	if err != nil || intake == nil {
		t.Fatalf("got %v, %v", intake, err)
	}
	page := int64(os.Getpagesize())
	if got := m.rounds.results(); len(got) != 2 || got[0].Bytes != 3*page || got[1].Bytes != page {
		t.Errorf("rounds %+v", got)
	}
	if err := m.complete(t.Context(), images); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(images)
	if len(entries) != 1 || entries[0].Name() != "pagemap-7.img" {
		t.Errorf("images %v", entries)
	}
	if b, err := os.ReadFile(filepath.Join(images, "pagemap-7.img")); err != nil || !bytes.Contains(b, []byte{32, 4, 40, 3}) {
		t.Errorf("pagemap %x, %v", b, err)
	}
}

// TestRoundFails: what went wrong here is why CRIU failed.
func TestRoundFails(t *testing.T) {
	m, dir, _ := takesInRounds(t, 2)
	shim, _, err := checkpoint.Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := round(t, shim.Round, 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := round(t, shim.Round, 5); err == nil {
		t.Error("pages that nobody has seen are taken in")
	}
	f, err := shim.Pages(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.Close() // there is no dump
	<-m.rounds.done
	var typed *image.RoundError
	if err := m.explain(t.Context(), errors.New("CRIU failed")); !errors.As(err, &typed) {
		t.Errorf("got %v", err)
	}
}

// TestNoRounds: a shim that takes none is understood.
func TestNoRounds(t *testing.T) {
	m, dir, images := takesInRounds(t, 2)
	shim, _, err := checkpoint.Join(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := round(t, shim.Pages, 0, 1, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := m.arrived(); err != nil {
		t.Fatal(err)
	}
	if err := m.complete(t.Context(), images); err != nil || len(m.rounds.results()) != 0 {
		t.Errorf("got %v, %+v", err, m.rounds.results())
	}
}

func TestCheckPreDump(t *testing.T) {
	for n, want := range map[string]bool{"0": true, "1": true, "16": true, "17": false, "-1": false} {
		f := checkpointFlags{ref: "a:1", compression: "none", segmentSize: "1MiB"}
		cmd := newCheckpoint(&app{})
		if err := cmd.Flags().Set("pre-dump", n); err != nil {
			t.Fatal(err)
		}
		f.preDump, _ = cmd.Flags().GetInt("pre-dump")
		if err := f.check(); (err == nil) != want || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s rounds: %v", n, err)
		}
	}
	if err := (&app{}).checkPreDump(t.Context(), &subject{name: "llm", gpus: true}); !errdefs.IsNotImplemented(err) || restore.Hint(err) == "" {
		t.Errorf("a container with GPUs gives %v", err)
	}
	// A CRIU that says no.
	dir := t.TempDir()
	program, config := filepath.Join(dir, "criu"), filepath.Join(dir, "cryo.toml")
	if err := errors.Join(os.WriteFile(program, []byte("#!/bin/sh\necho 'mem_dirty_track is not supported'\nexit 1\n"), 0o755), os.WriteFile(config, []byte("criu = \""+program+"\"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	err := (&app{configPath: config}).checkPreDump(t.Context(), &subject{name: "web"})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(restore.Hint(err), "CONFIG_MEM_SOFT_DIRTY") || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("a kernel without soft-dirty gives %v", err)
	}
}
