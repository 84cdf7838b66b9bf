package runc

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// network starts a process with a network of its own.
func network(t *testing.T) (pid int) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("root is needed")
		}
		t.Skip("root is needed")
	}
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// in runs a command line in the network of a process.
func in(t *testing.T, pid int, line string) string {
	t.Helper()
	out, err := exec.Command("nsenter", "-t", fmt.Sprint(pid), "-n", "sh", "-c", line).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// TestUnlock has the rules of a CRIU that was killed, as CRIU makes them, twice; and rules of others.
func TestUnlock(t *testing.T) {
	const locked = `*filter
:CRIU - [0:0]
-I INPUT -j CRIU
-I OUTPUT -j CRIU
-A CRIU -m mark --mark 0xC114 -j ACCEPT
-A CRIU -j DROP
COMMIT
`
	const table = "CRIU-9e65fce1-e54f-4931-b8"
	for name, lines := range map[string][]string{
		"none":     {"true"},
		"iptables": {"echo '" + locked + "' | iptables-restore --noflush", "echo '" + locked + "' | ip6tables-restore --noflush", "echo '" + locked + "' | iptables-restore --noflush"},
		"nftables": {"nft create table inet " + table, "nft 'add chain inet " + table + " output { type filter hook output priority 0; policy drop; }'"},
	} {
		t.Run(name, func(t *testing.T) {
			pid := network(t)
			in(t, pid, "iptables -N CRIUS && iptables -A INPUT -j CRIUS && nft create table inet CRIUS && nft create table ip CRIU-1")
			for _, line := range lines {
				in(t, pid, line)
			}
			n, err := OpenNetwork(pid)
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if err := n.Unlock(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
			chains, tables := in(t, pid, "iptables-save -t filter; ip6tables-save -t filter"), in(t, pid, "nft list tables")
			if strings.Contains(chains, "CRIU ") || strings.Contains(chains, "CRIU\n") || strings.Contains(tables, table) {
				t.Errorf("left are\n%s%s", chains, tables)
			}
			if !strings.Contains(chains, "-A INPUT -j CRIUS") || !strings.Contains(tables, "inet CRIUS\n") || !strings.Contains(tables, "ip CRIU-1\n") {
				t.Errorf("others' rules are gone; left are\n%s%s", chains, tables)
			}
		})
	}
}

// TestUnlockShared has two dumps' tables in a network that is shared: only that of the known run goes.
func TestUnlockShared(t *testing.T) {
	pid := network(t)
	in(t, pid, "nft create table inet CRIU-9e65fce1-e54f-4931-b8 && nft create table inet CRIU-54fc9879-b5d3-4cb5-84")
	n, err := OpenNetwork(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	n.shared = true
	if err := n.Unlock(t.Context(), "9e65fce1-e54f-4931-b8aa-0123456789ab"); err != nil {
		t.Fatal(err)
	}
	if tables := in(t, pid, "nft list tables"); strings.Contains(tables, "9e65") || !strings.Contains(tables, "54fc") {
		t.Errorf("left are\n%s", tables)
	}
}

func TestUnlockScript(t *testing.T) {
	for rules, want := range map[string]string{
		"*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n":                    "",
		"*filter\n:CRIU2 - [0:0]\n-A INPUT -j CRIU2\nCOMMIT\n":      "",
		"*filter\n:CRIU - [0:0]\n-A INPUT -j CRIU\n-A CRIU -j DROP": "*filter\n-D INPUT -j CRIU\n-F CRIU\n-X CRIU\nCOMMIT\n",
	} {
		if got := unlock(rules); got != want {
			t.Errorf("%q: %q, not %q", rules, got, want)
		}
	}
}

// TestOwnNetwork has this process in its own network still when it has run programs in another: also its first thread, which Go never ends.
func TestOwnNetwork(t *testing.T) {
	pid := network(t)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n, err := OpenNetwork(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for range 100 {
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if _, err := n.inside(t.Context(), nil, "/bin/true"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != before {
			t.Fatalf("the first thread is in %s, not in %s: %v", now, before, err)
		}
	}
}
