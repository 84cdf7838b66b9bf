package host

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

func sprintf(format string, a ...any) string { return fmt.Sprintf(format, a...) }

func criuMissing(_ comparison, t FitTarget) []mismatch {
	if t.CRIU != "" {
		return nil
	}
	return one("there is no CRIU on this host that runs", "install CRIU (contrib/criu/install does on Debian); cryo doctor tells more")
}

// criuVersion: CRIU promises to read what older versions wrote, not the reverse; patch releases do not change the images.
func criuVersion(s comparison, t FitTarget) []mismatch {
	if t.CRIU == "" || s.Host.CRIU == "" {
		return nil
	}
	if !older(t.CRIU, s.Host.CRIU) {
		return nil
	}
	return one(sprintf("the snapshot is by CRIU %s, this host has %s", s.Host.CRIU, t.CRIU), sprintf("install CRIU %s or later", s.Host.CRIU))
}

func kernelVersion(s comparison, t FitTarget) []mismatch {
	if !older(t.Kernel, s.Host.Kernel) {
		return nil
	}
	return one(sprintf("the snapshot is of kernel %s, this host has the older %s", s.Host.Kernel, t.Kernel), "")
}

func kernelFeatures(s comparison, t FitTarget) []mismatch {
	if t.CRIU == "" {
		return nil // the host could not be asked
	}
	var missing []string
	for _, f := range s.Host.Features {
		if f != NFTablesLock && !slices.Contains(t.Features, f) {
			missing = append(missing, f)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return one("the kernel lacks "+strings.Join(missing, ", ")+" (names of criu check --feature)", "use a newer kernel, or one configured for CRIU")
}

// NFTablesLock is CRIU's name of what a host must have to restore a container whose network was locked with nftables.
const NFTablesLock = "network_lock_nftables"

// networkLock: CRIU takes the means out of the images, whatever it is told. Source: CRIU criu/image.c, check_img_inventory.
func networkLock(s comparison, t FitTarget) []mismatch {
	if t.CRIU == "" || !slices.Contains(s.Host.Features, NFTablesLock) || slices.Contains(t.Features, NFTablesLock) {
		return nil
	}
	return one("the snapshot's network was locked with nftables, which this host's kernel or CRIU does not have",
		"modprobe nf_tables, or install a CRIU with nftables (criu check --feature "+NFTablesLock+" tells); or take the snapshot again with network-lock = \"iptables\" under [dump] in the configuration")
}

func runcMissing(_ comparison, t FitTarget) []mismatch {
	if t.Runc != "" {
		return nil
	}
	return one("there is no runc in PATH", "install runc, or see that containerd's PATH has one")
}

// older reports whether version a is older than b by its first two numbers. Versions that are none are never older.
func older(a, b string) bool {
	a1, a2, ok := version(a)
	b1, b2, ok2 := version(b)
	if !ok || !ok2 {
		return false
	}
	return a1 < b1 || a1 == b1 && a2 < b2
}

// version takes the first two numbers out of "4.1.1" or "6.12.0-rc1+deb13-amd64"; the second may be missing.
func version(s string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(s, "v"), ".")
	major, err := strconv.Atoi(first)
	if err != nil || major < 0 {
		return 0, 0, false
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end >= 0 {
		rest = rest[:end]
	}
	if rest == "" {
		return major, 0, true
	}
	minor, err = strconv.Atoi(rest)
	return major, minor, err == nil
}
