package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestKnown: CRIU is asked for what it has not said that the host has, and for all of it when it, or the kernel, is another.
func TestKnown(t *testing.T) {
	dir := t.TempDir()
	program, asked := filepath.Join(dir, "criu"), filepath.Join(dir, "asked")
	install := func(has string) {
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\necho $3 >> %s\ncase $3 in %s) ;; *) exit 1;; esac\n", asked, has)
		if err := os.WriteFile(program+".new", []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	k := Known(filepath.Join(dir, "features.json"))
	want := func(names, has, calls string) {
		t.Helper()
		got := k.Features(t.Context(), program, strings.Fields(names))
		log, _ := os.ReadFile(asked)
		_ = os.Remove(asked)
		lines := strings.Fields(string(log))
		slices.Sort(lines)
		if strings.Join(got, " ") != has || strings.Join(lines, " ") != calls {
			t.Errorf("of %q it has %q, and was asked for %q; want %q, %q", names, got, lines, has, calls)
		}
	}
	install("timens")
	want("", "", "")
	want("uffd timens timens --exec-cmd", "timens", "timens uffd")
	want("timens uffd", "timens", "uffd") // what it lacks may have come
	install("timens|uffd")
	want("uffd", "uffd", "uffd")
	want("timens uffd", "timens uffd", "timens")
	want("timens uffd", "timens uffd", "")
	data, err := os.ReadFile(string(k))
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []string{strings.Replace(string(data), string(boot[:8]), "00000000", 1), string(data[:len(data)/2]), ""} {
		if err := os.WriteFile(string(k), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		want("timens", "timens", "timens")
		want("timens", "timens", "")
	}
	k = Known(filepath.Join(dir, "none", "features.json"))
	want("timens", "timens", "timens")
	want("timens", "timens", "timens")
}
