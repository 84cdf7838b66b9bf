package take

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

	"github.com/cryo-project/cryo/image/spec/failure"
	"github.com/cryo-project/cryo/runtime/checkpoint"
	"github.com/cryo-project/cryo/shim/config"
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
	dir, images = t.TempDir(), t.TempDir()
	client, err := checkpoint.Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	client.Options = checkpoint.Options{Pages: true, PreDump: want}
	m, err = begun(t, Options{PreDump: want}).takeIn(t.Context(), client, images, t.TempDir())
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
func round(t *testing.T, connect func() (*os.File, error), unchanged uint64, content ...byte) error {
	t.Helper()
	f, err := connect()
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
	f, err := shim.Pages()
	if err != nil {
		t.Fatal(err)
	}
	f.Close() // there is no dump
	<-m.rounds.done
	if err := m.explain(t.Context(), errors.New("CRIU failed")); !errdefs.IsAborted(err) {
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
	if err := begun(t, Options{Container: "llm"}).checkPreDump(t.Context(), true); !errdefs.IsNotImplemented(err) || failure.Hint(err) == "" {
		t.Errorf("a container with GPUs gives %v", err)
	}
	// A CRIU that says no.
	program := filepath.Join(t.TempDir(), "criu")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho 'mem_dirty_track is not supported'\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	err := begun(t, Options{Container: "web", Config: config.Config{CRIU: program}}).checkPreDump(t.Context(), false)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(failure.Hint(err), "CONFIG_MEM_SOFT_DIRTY") || !strings.Contains(err.Error(), "not supported") {
		t.Errorf("a kernel without soft-dirty gives %v", err)
	}
}
