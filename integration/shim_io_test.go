package integration

import (
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/cio"
	"github.com/containerd/containerd/v2/pkg/oci"
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
	eventually(t, "echo", 10*time.Second, func() bool { return strings.Contains(s.out.String(), "echo: hello\r\n") })
	state := await(t, a, id).State
	if state["terminal"] != true || state["columns"] != 132.0 || state["rows"] != 43.0 {
		t.Errorf("terminal is %v", state)
	}
	close(s.input)
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
	eventually(t, "echo", 10*time.Second, func() bool { return strings.Contains(s.out.String(), "echo: one\necho: two\n") })
	close(s.input)
	if err := task.CloseIO(inDefault(t), containerd.WithStdinCloser); err != nil {
		t.Fatal(err)
	}
	eventually(t, "end of input", 10*time.Second, func() bool { return await(t, a, id).State["ended"] == true })
}

// TestShimLog has the output of a detached container in its log.
func TestShimLog(t *testing.T) {
	a, _ := pair(t)
	id := name(t)
	start(t, a, id, nil, "workload", "count")
	eventually(t, "log", 10*time.Second, func() bool { return strings.Contains(output(t, a, id), "count 3\n") })
}
