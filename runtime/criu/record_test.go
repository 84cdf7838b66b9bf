package criu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
)

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRecord(t *testing.T) {
	dir := t.TempDir()
	want := Record{TCPEstablished: true, FileLocks: true}
	if err := WriteRecord(dir, want); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadRecord(dir); err != nil || got != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestRecordOfForeignDump(t *testing.T) {
	dir := t.TempDir()
	if got, err := ReadRecord(dir); err != nil || got != (Record{}) {
		t.Errorf("without streams: got %+v, %v", got, err)
	}
	write(t, dir, "tcp-stream-8.img", "")
	if got, err := ReadRecord(dir); err != nil || !got.TCPEstablished {
		t.Errorf("with a stream: got %+v, %v", got, err)
	}
}

func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, recordName, "{")
	if _, err := ReadRecord(dir); !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("got %v", err)
	}
}

func TestCheckImages(t *testing.T) {
	dir := t.TempDir()
	if err := CheckImages(dir); !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("empty: got %v", err)
	}
	write(t, dir, "inventory.img", "x")
	if err := CheckImages(dir); !errors.Is(err, errdefs.ErrDataLoss) {
		t.Errorf("without runc's file: got %v", err)
	}
	write(t, dir, "descriptors.json", "[]")
	if err := CheckImages(dir); err != nil {
		t.Error(err)
	}
}
