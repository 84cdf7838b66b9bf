package driver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// hold brings processes into a state.
func hold(t *testing.T, c *Client, pids []int, s State) {
	t.Helper()
	done(t)(c.Lock(t.Context(), pids, time.Second))
	if s == Checkpointed {
		done(t)(c.Checkpoint(t.Context(), pids))
	}
}

func TestCloseUndoes(t *testing.T) {
	for _, s := range []State{Locked, Checkpointed} {
		t.Run(string(s), func(t *testing.T) {
			r := newRig(t, 2)
			a := r.run("--processes", "2")
			c := r.start()
			hold(t, c, a.pids, s)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			states(t, r.start(), a.pids, Running)
			a.works()
			if err := c.Close(); err != nil {
				t.Errorf("closed again: %v", err)
			}
		})
	}
}

func TestSignalUndoes(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			r := newRig(t, 1)
			a := r.run()
			c := r.start()
			hold(t, c, a.pids, Checkpointed)
			if err := syscall.Kill(c.PID(), signal); err != nil {
				t.Fatal(err)
			}
			a.works()
			eventually(t, "it ends", func() bool {
				_, err := c.Facts(t.Context())
				return errors.As(err, new(*DiedError))
			})
		})
	}
}

func TestReleasedIsNotUndone(t *testing.T) {
	r := newRig(t, 1)
	a := r.run()
	c := r.start()
	hold(t, c, a.pids, Checkpointed)
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	next := r.start()
	states(t, next, a.pids, Checkpointed)
	done(t)(next.Restore(t.Context(), a.pids, nil))
	done(t)(next.Unlock(t.Context(), a.pids))
	a.works()
}

// TestDeadProcessesNeedNoUndoing is what happens when the container was killed.
func TestDeadProcessesNeedNoUndoing(t *testing.T) {
	r := newRig(t, 1)
	killed, other := r.run(), r.run()
	c := r.start()
	hold(t, c, []int{killed.pids[0], other.pids[0]}, Checkpointed)
	if err := syscall.Kill(killed.pids[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return syscall.Kill(killed.pids[0], 0) != nil })
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	other.works()
}

// A copy of the test program is a client that locks and checkpoints processes and is killed then.
const clientVariable = "CRYO_DRIVER_TEST_CLIENT"

func lockAndDie() {
	fields := strings.Fields(os.Getenv(clientVariable))
	c, err := Start(context.Background(), fields[0])
	if err != nil {
		panic(err)
	}
	var pids []int
	for _, f := range fields[2:] {
		pid, err := strconv.Atoi(f)
		if err != nil {
			panic(err)
		}
		pids = append(pids, pid)
	}
	if _, err := c.Lock(context.Background(), pids, time.Second); err != nil {
		panic(err)
	}
	if fields[1] == "during" {
		go func() { _, _ = c.Checkpoint(context.Background(), pids) }()
		time.Sleep(200 * time.Millisecond)
	} else if _, err := c.Checkpoint(context.Background(), pids); err != nil {
		panic(err)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func TestKilledClientsWorkIsUndone(t *testing.T) {
	for _, when := range []string{"during", "after"} {
		t.Run(when+" the checkpoint", func(t *testing.T) {
			r := newRig(t, 2)
			a := r.run("--processes", "2")
			if when == "during" {
				r.order("checkpoint 2 slow 500")
			}
			client := exec.Command(os.Args[0])
			client.Env = append(os.Environ(), clientVariable+"="+helperPath+" "+when)
			for _, pid := range a.pids {
				client.Env[len(client.Env)-1] += " " + strconv.Itoa(pid)
			}
			if out, err := client.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("client: %v: %s", err, out)
			}
			a.works()
			states(t, r.start(), a.pids, Running)
			if calls := strings.Join(r.log(), "\n"); strings.Count(calls, "restore") != 2 || strings.Count(calls, "unlock") != 2 {
				t.Errorf("calls: %s", calls)
			}
		})
	}
}
