package netlock

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
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

// unlock gives what iptables-restore must read to remove CRIU's chain from the rules of the table filter; empty if there is none.
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
	type started struct {
		exits chan gorunc.Exit
		err   error
	}
	done := make(chan started, 1)
	go func() {
		// Go does not end a process's first thread, which /proc/self shows: it must not stay in the container's network.
		runtime.LockOSThread()
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- started{err: fmt.Errorf("find this process's network: %w", err)}
			return
		}
		defer own.Close()
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- started{err: fmt.Errorf("enter the container's network: %w", err)}
			return
		}
		exits, err := gorunc.Monitor.Start(cmd)
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil { // else the thread is not used again, and ends with this goroutine
			runtime.UnlockOSThread()
		}
		done <- started{exits, err}
	}()
	s := <-done
	if s.err != nil {
		return nil, fmt.Errorf("run %s: %w", path, s.err)
	}
	status, err := gorunc.Monitor.Wait(cmd, s.exits)
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d: %s", status, bytes.TrimSpace(complaints.Bytes()))
	}
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", path, err)
	}
	return output.Bytes(), nil
}
