package integration

import (
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// TestShimTerminal types into a container's terminal and changes its size.
func TestShimTerminal(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	var s streams
	task := created(t, a, id, cryoRuntime, nil, s.creator(a, cio.WithTerminal), []oci.SpecOpts{oci.WithTTY}, "workload", "terminal", "--quiet")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	await(t, a, id)
	if err := task.Resize(inDefault(t), 132, 43); err != nil {
		t.Fatal(err)
	}
	s.input <- []byte("hello\n")
	eventually(t, "echo", 30*time.Second, func() bool { return strings.Contains(s.out.String(), "echo: hello\r\n") })
	state := await(t, a, id).State
	if state["terminal"] != true || state["columns"] != 132.0 || state["rows"] != 43.0 {
		t.Errorf("terminal is %v", state)
	}
	close(s.input)
}

// TestShimExecTerminal gives an exec a terminal that the container does not have.
func TestShimExecTerminal(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	var s streams
	spec := &specs.Process{Args: []string{"sh", "-c", "read line; echo got $line; tty"}, Cwd: "/", Terminal: true, Env: []string{"PATH=/bin"}}
	process, err := taskOf(t, a, id).Exec(inDefault(t), "terminal", spec, s.creator(a, cio.WithTerminal))
	if err != nil {
		t.Fatal(err)
	}
	ended, err := process.Wait(inDefault(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	s.input <- []byte("line\n")
	if code, _, err := (<-ended).Result(); code != 0 || err != nil {
		t.Errorf("exit status %d (%v)", code, err)
	}
	close(s.input)
	eventually(t, "its output", 10*time.Second, func() bool { return strings.Contains(s.out.String(), "got line\r\n/dev/pts/") }) // Delete cuts off a client that has not begun to read
	if _, err := process.Delete(inDefault(t)); err != nil {
		t.Error(err)
	}
}

// TestShimInput writes to a container's standard input and closes it.
func TestShimInput(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	var s streams
	task := created(t, a, id, cryoRuntime, nil, s.creator(a), nil, "workload", "terminal", "--quiet")
	if err := task.Start(inDefault(t)); err != nil {
		t.Fatal(err)
	}
	await(t, a, id)
	s.input <- []byte("one\ntwo\n")
	eventually(t, "echo", 30*time.Second, func() bool { return strings.Contains(s.out.String(), "echo: one\necho: two\n") })
	close(s.input)
	if err := task.CloseIO(inDefault(t), containerd.WithStdinCloser); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of input", 30*time.Second, func() bool { return await(t, a, id).State["ended"] == true })
}

// TestShimLog has the output of a detached container in its log.
func TestShimLog(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	eventually(t, "log", 30*time.Second, func() bool { return strings.Contains(output(t, a, id), "count 3\n") })
}
