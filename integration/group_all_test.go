package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// sshd starts Debian's sshd on a host, and returns a client's configuration for all hosts that have one in the directory.
func sshd(t *testing.T, dir string, hosts ...*lab.Host) (config string) {
	t.Helper()
	key := filepath.Join(dir, "key")
	config = filepath.Join(dir, "config")
	machine(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	var text strings.Builder
	fmt.Fprintf(&text, "IdentityFile %s\nIdentitiesOnly yes\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n", key)
	for _, h := range hosts {
		own := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(own, 0o700); err != nil {
			t.Fatal(err)
		}
		machine(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(own, "host"))
		lines := []string{
			"Port 2222", "HostKey " + filepath.Join(own, "host"), "AuthorizedKeysFile " + key + ".pub", "StrictModes no", "PidFile none", "UsePAM no", "PermitRootLogin yes", "MaxStartups 100:30:200", "MaxSessions 100",
		}
		var env []string // on one line: sshd heeds the first alone
		for _, v := range h.Env() {
			name, value, _ := strings.Cut(v, "=")
			env = append(env, fmt.Sprintf("%s=%q", name, value))
		}
		lines = append(lines, "SetEnv "+strings.Join(env, " "))
		file := filepath.Join(own, "config")
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		must(t, h.Run(t.Context(), "mkdir", "-p", "/run/sshd"))
		server, err := h.Launch("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", file)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Stop(15) })
		fmt.Fprintf(&text, "Host %s\nHostName %s\nPort 2222\nUser root\n", h.Name, h.Address)
	}
	if err := os.WriteFile(config, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		eventually(t, "sshd of "+h.Name+" answers", 10*time.Second, func() bool {
			return exec.CommandContext(t.Context(), "ssh", "-F", config, h.Name, "true").Run() == nil
		})
	}
	return config
}

// ringOf starts a member of a ring on each host, in the host's network, and waits until messages go round.
func ringOf(t *testing.T, hosts ...*lab.Host) (ids []string) {
	t.Helper()
	for i, h := range hosts {
		id := name(t)
		ids = append(ids, id)
		next := hosts[(i+1)%len(hosts)].Address
		startImage(t, h, lab.ImageName, id, append([]string{"--net-host"}, plainTCP...), "workload", "ring", "--quiet", "--next", next+":7100")
	}
	for i, h := range hosts {
		goesRound(t, h, ids[i])
	}
	return ids
}

// goesRound waits until a member of a ring has sent and taken more messages than before.
func goesRound(t *testing.T, h *lab.Host, id string) {
	t.Helper()
	before := await(t, h, id)
	eventually(t, "messages go round through "+id+" on "+h.Name, 30*time.Second, func() bool {
		now := await(t, h, id)
		return number(now, "acknowledged") > number(before, "acknowledged")+ringMore && number(now, "taken") > number(before, "taken")+ringMore
	})
}

// ringMore is how many messages show that a connection works.
const ringMore = 1000

func number(a lab.Answer, of string) float64 {
	n, _ := a.State[of].(float64)
	return n
}

// TestGroup takes a ring on two hosts in step, left running, then ended, and restores it on two others.
func TestGroup(t *testing.T) {
	a, b, c, d := newHost(t, "one", lab.HostOptions{}), newHost(t, "two", lab.HostOptions{}), newHost(t, "three", lab.HostOptions{}), newHost(t, "four", lab.HostOptions{})
	config := sshd(t, t.TempDir(), a, b, c, d)
	ids := ringOf(t, a, b)
	ref := shared.registry.Reference(name(t)) + ":ring"
	taken := must(t, a.Cryo(t.Context(), "checkpoint", "--ssh", "ssh -F "+config, "--group", "one="+a.Name+"/"+ids[0], "--group", "two="+b.Name+"/"+ids[1], "--leave-running", "--plain-http", "--json", ref))
	t.Log(taken.Stdout)
	goesRound(t, a, ids[0])
	goesRound(t, b, ids[1])
	taken = must(t, a.Cryo(t.Context(), "checkpoint", "--ssh", "ssh -F "+config, "--group", "one="+a.Name+"/"+ids[0], "--group", "two="+b.Name+"/"+ids[1], "--plain-http", "--json", ref))
	t.Log(taken.Stdout)
	for i, h := range []*lab.Host{c, d} {
		cleanup(t, h, ids[i])
	}
	restored := must(t, a.Cryo(t.Context(), "restore", "--ssh", "ssh -F "+config, "--group", "one="+c.Name, "--group", "two="+d.Name, "--plain-http", "--allow", "namespaces", "--json", ref))
	t.Log(restored.Stdout)
	goesRound(t, c, ids[0])
	goesRound(t, d, ids[1])
}
