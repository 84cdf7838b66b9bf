package hosttest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/runtime/gpu"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/shim/config"
)

// UUID is that of the nth GPU of hosts made up for tests.
func UUID(host string, n int) string {
	return fmt.Sprintf("GPU-%s%d-0000-4000-8000-%012d", strings.Repeat(host, 7), n, n)
}

// Host makes this host one with n GPUs, by a helper that says so and CDI files as nvidia-ctk writes them.
func Host(t *testing.T, version string, n int) config.Config {
	t.Helper()
	return HostWith(t, version, n, 100<<30)
}

// HostWith is Host with so much memory free on each.
func HostWith(t *testing.T, version string, n int, free int64) config.Config {
	t.Helper()
	facts := device.Facts{Driver: version, CUDA: 13000}
	for i := range n {
		facts.Devices = append(facts.Devices, device.Device{
			UUID: UUID("b", i), Index: i, Minor: i, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30, Free: free,
		})
	}
	line, err := json.Marshal(facts)
	if err != nil {
		t.Fatal(err)
	}
	return HelperSays(t, 0, string(line))
}

// HelperSays puts a helper into PATH that answers with one message and ends with an exit code; where it serves, and that is 0, when it is to end. A write to descriptor 3 is a message
// of package channel.
func HelperSays(t *testing.T, code int, message string) config.Config {
	t.Helper()
	return HelperDoes(t, fmt.Sprintf(`if [ "$1" = driver ] && [ %[2]d = 0 ]; then
	echo '{"hello":%[3]d}' >&3
	dd bs=65536 count=1 <&3 >/dev/null 2>&1
	cat >&3 <<'END'
{"facts":%[1]s}
END
	exec cat <&3 >/dev/null
fi
if [ "$1" = driver ]; then
	exec >&3
fi
cat <<'END'
%[1]s
END
exit %[2]d
`, message, code, device.HelperVersion))
}

// HelperDoes puts a helper into PATH that is a script.
func HelperDoes(t *testing.T, script string) config.Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cryo-gpu-keeper"), []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return CDI(t, "two")
}

// CDI is a configuration with the CDI files of this name, among those of the tests of runtime/gpu.
func CDI(t *testing.T, name string) config.Config {
	t.Helper()
	dir, err := os.Getwd() // of a package in this module
	if err != nil {
		t.Fatal(err)
	}
	for {
		files := filepath.Join(dir, "runtime/gpu/testdata", name)
		if _, err := os.Stat(files); err == nil {
			c := config.Default()
			c.GPU.CDI = []string{files}
			return c
		}
		if dir == "/" {
			t.Fatalf("no CDI files %s in runtime/gpu/testdata", name)
		}
		dir = filepath.Dir(dir)
	}
}

// Saved is the GPU part of a snapshot taken elsewhere.
func Saved(devices int, names ...string) *image.GPU {
	g := &image.GPU{Engine: "driver", Driver: "580.159.04", CDI: names}
	for i := range devices {
		g.Devices = append(g.Devices, image.GPUDevice{UUID: UUID("a", i), Minor: i, Name: "NVIDIA H200", Architecture: "9.0", Memory: 140 << 30, Used: 1 << 30})
		g.Processes = append(g.Processes, image.GPUProcess{PID: i + 1, Command: "python", Memory: 1 << 30, Devices: []string{UUID("a", i)}})
	}
	return g
}

// PlainSpec is the specification of a container without devices.
func PlainSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{Env: []string{"PATH=/bin"}},
		Linux: &specs.Linux{Resources: &specs.LinuxResources{}, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
		}},
	}
}

// Handed is what a shim writes of a process that has handed over two pieces on each of two GPUs.
func Handed() gpu.Record {
	r := gpu.Record{GPU: image.GPU{
		Engine: image.KeeperEngine, Driver: "580.159.04", Library: &image.GPULibrary{Version: "1.0", Digest: digest.Digest("sha256:" + strings.Repeat("a", 64))},
		Devices:   []image.GPUDevice{{UUID: UUID("a", 1)}, {UUID: UUID("a", 2)}},
		Processes: []image.GPUProcess{{PID: 7, Command: "python", Devices: []string{UUID("a", 1), UUID("a", 2)}}, {PID: 9, Command: "sh", Fallback: "it was forked"}},
	}}
	for n := range 4 {
		r.Processes[0].Pieces = append(r.Processes[0].Pieces, image.GPUPiece{Address: uint64(n+1) << 30, Size: 2 << 20, Device: r.Devices[n%2].UUID})
	}
	return r
}
