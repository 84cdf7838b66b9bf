package runc

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/criu"
)

// chain is that of CRIU.
const chain = "CRIU"

// removeChains removes CRIU's chain, by the programs that CRIU uses. Where they are not installed, CRIU has made none.
func (n *Network) removeChains(ctx context.Context) error {
	for _, program := range []string{"iptables", "ip6tables"} {
		save, err := exec.LookPath(program + "-save")
		if err != nil {
			continue
		}
		restore, err := exec.LookPath(program + "-restore")
		if err != nil {
			continue
		}
		for attempt := 0; ; attempt++ {
			rules, err := n.inside(ctx, nil, save, "-t", "filter")
			if err != nil {
				if program == "ip6tables" {
					break // a kernel without IPv6, where CRIU does not use it either
				}
				return err
			}
			script := unlock(string(rules))
			if script == "" {
				break
			}
			if attempt > 1 {
				return fmt.Errorf("remove chain %s of %s: it is still there", chain, program)
			}
			if _, err := n.inside(ctx, []byte(script), restore, "--noflush", "--wait", "10"); err != nil {
				return err
			}
		}
	}
	return nil
}

// unlock returns what iptables-restore must read to remove CRIU's chain from the rules of the table filter; empty if there is none.
func unlock(rules string) string {
	var script strings.Builder
	has := false
	for line := range strings.Lines(rules) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, ":"+chain+" ") {
			has = true
		}
		if rule, ok := strings.CutPrefix(line, "-A "); ok && strings.HasSuffix(rule, " -j "+chain) && (strings.HasPrefix(rule, "INPUT ") || strings.HasPrefix(rule, "OUTPUT ")) {
			fmt.Fprintf(&script, "-D %s\n", rule)
		}
	}
	if !has {
		return ""
	}
	return "*filter\n" + script.String() + "-F " + chain + "\n-X " + chain + "\nCOMMIT\n"
}

// inside runs a program in the network and gives its output. In a shim all children are reaped by one, go-runc's monitor.
func (n *Network) inside(ctx context.Context, input []byte, path string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	var output, complaints bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &output, &complaints
	var exits chan gorunc.Exit
	err := criu.InNamespace(unix.CLONE_NEWNET, fmt.Sprintf("/proc/self/fd/%d", n.file.Fd()), func() (err error) {
		exits, err = gorunc.Monitor.Start(cmd)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("run %s in the container's network: %w", path, err)
	}
	status, err := gorunc.Monitor.Wait(cmd, exits)
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d: %s", status, bytes.TrimSpace(complaints.Bytes()))
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	return output.Bytes(), nil
}
