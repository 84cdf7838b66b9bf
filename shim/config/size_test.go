package config

import "testing"

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 5 << 20: "5.0 MiB", 3 << 30: "3.0 GiB", 2 << 40: "2.0 TiB", 4096 << 40: "4096.0 TiB"} {
		if got := Size(n); got != want {
			t.Errorf("Of(%d) = %q, want %q", n, got, want)
		}
	}
	for s, want := range map[string]int64{"0": 0, "17": 17, "1k": 1 << 10, "256MiB": 256 << 20, "256 MiB": 256 << 20, "1GB": 1 << 30, "2gib": 2 << 30, "5B": 5, "1.5G": 3 << 29} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("Parse(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "MiB", "-1", "1 parsec", "1 MiX", "99999999999999999999", "99999999999G"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("Parse(%q) = %d", s, got)
		}
	}
}
