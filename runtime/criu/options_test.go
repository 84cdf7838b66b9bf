package criu

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestEncode(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own.conf")
	if err := os.WriteFile(own, []byte("tcp-close\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{
		GhostLimit: 64 << 20, Timeout: 1500 * time.Millisecond, NetworkLock: "nftables", Libdir: "/run/x",
		TCPEstablished: true, FileLocks: true, ExternalSockets: true, Include: own, PagesDescriptor: 4,
	}
	want := "network-lock nftables\nlibdir /run/x\nghost-limit 67108864\ntimeout 2\npage-server\nps-socket 4\ntcp-established\nfile-locks\next-unix-sk\ntcp-close\n"
	got, err := o.Encode()
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if err := os.WriteFile(own, []byte("# x\n  tcp-established\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		o    Options
		want string
	}{
		"no connection":   {Options{NetworkLock: SkipLock, SkipInFlight: true}, "network-lock skip\nskip-in-flight\n"},
		"saved":           {Options{NetworkLock: SkipLock, TCPEstablished: true}, "tcp-established\n"},
		"saved, fenced":   {Options{NetworkLock: SkipLock, TCPEstablished: true, Fenced: true}, "network-lock skip\ntcp-established\n"},
		"saved by a file": {Options{NetworkLock: SkipLock, Include: own}, "# x\n  tcp-established\n"},
	} {
		if got, err := test.o.Encode(); err != nil || string(got) != test.want {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	if got, err := (Options{Include: "/nonexistent"}).Encode(); err != nil || len(got) != 0 {
		t.Errorf("zero options: got %q, %v", got, err)
	}
	if _, err := (Options{Libdir: "/a\ntcp-close"}).Encode(); err == nil {
		t.Error("a value with a second line was let through")
	}
}

func TestWriteFileReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "criu.conf")
	for _, o := range []Options{{Timeout: time.Minute, TCPEstablished: true}, {FileLocks: true}} {
		if err := o.WriteFile(path); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != "file-locks\n" {
		t.Errorf("got %q, %v", got, err)
	}
}
