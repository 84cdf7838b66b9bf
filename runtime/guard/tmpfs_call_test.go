package guard

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// TestMain makes of the test's program what the shim's is.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == TarName {
		os.Exit(TarMain(os.Args))
	}
	os.Exit(m.Run())
}

// call runs tar as CRIU does, PATH beginning with a link to this program.
func call(t *testing.T, in []byte, args ...string) (status int, out []byte, complaint string) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), TarName)
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Cmd{Path: link, Args: append([]string{TarName}, args...), Stdin: bytes.NewReader(in), Stdout: &stdout, Stderr: &stderr}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.String()
}

func TestMainAsCRIUCalls(t *testing.T) {
	dir, to := fileTree(t), inMemory(t)
	status, image, complaint := call(t, nil, append(createArgs[:len(createArgs):len(createArgs)], dir, ".")...)
	if status != 0 || complaint != "" {
		t.Fatalf("exit status %d: %s", status, complaint)
	}
	extractTo := append(extractArgs[:len(extractArgs):len(extractArgs)], to)
	if status, _, complaint := call(t, image, extractTo...); status != 0 || complaint != "" {
		t.Fatalf("exit status %d: %s", status, complaint)
	}
	defer os.Chmod(filepath.Join(to, "directory"), 0o755)
	same(t, describe(t, dir), describe(t, to))

	status, _, complaint = call(t, image[:len(image)/2], append(extractTo[:len(extractTo)-1:len(extractTo)-1], inMemory(t))...)
	if status == 0 || !strings.HasPrefix(complaint, "Error (tar): ") || !strings.Contains(complaint, "cut short") || strings.Count(complaint, "\n") != 1 {
		t.Errorf("half an image: exit status %d: %s", status, complaint)
	}
	status, _, complaint = call(t, nil, append(createArgs[:len(createArgs):len(createArgs)], filepath.Join(to, "absent"), ".")...)
	if status == 0 || !strings.Contains(complaint, "no such file") {
		t.Errorf("no directory: exit status %d: %s", status, complaint)
	}
}

// TestMainElse calls tar in ways that are not CRIU's.
func TestMainElse(t *testing.T) {
	if path, err := exec.LookPath("tar"); err != nil {
		t.Skip("no tar")
	} else if out, err := exec.Command(path, "--version").Output(); err != nil || !bytes.Contains(out, []byte("tar")) {
		t.Skip("no tar with a version")
	}
	if status, out, complaint := call(t, nil, "--version"); status != 0 || !bytes.Contains(out, []byte("tar")) {
		t.Errorf("exit status %d: %s%s", status, out, complaint)
	}
	t.Setenv("PATH", t.TempDir())
	if status, _, complaint := call(t, nil, "--version"); status != 127 || !strings.Contains(complaint, "not found") {
		t.Errorf("with no other tar: exit status %d: %s", status, complaint)
	}
}

func TestRecognize(t *testing.T) {
	for _, args := range [][]string{
		nil, {"--version"}, createArgs, append(createArgs[:len(createArgs):len(createArgs)], "/d", "."+"/x"),
		append(createArgs[1:len(createArgs):len(createArgs)], "/d", "."), extractArgs, append(extractArgs[:len(extractArgs):len(extractArgs)], "/d", "file"),
	} {
		if _, run := recognize(args); run != nil {
			t.Errorf("%q is taken for CRIU's", args)
		}
	}
}

// inMemory makes a directory in a tmpfs.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cryo-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// TestFresh: images are extracted into an empty tmpfs and nowhere else.
func TestFresh(t *testing.T) {
	used := inMemory(t)
	if err := os.WriteFile(filepath.Join(used, "null"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, words := range map[string]string{t.TempDir(): "is no tmpfs", used: "is not empty", inMemory(t): "", "/dev": "is not empty"} {
		if err := fresh(dir); (err != nil) != (words != "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestDevices: device nodes are made by another process, or left out, and a link to one that was left out is left out.
func TestDevices(t *testing.T) {
	dir := t.TempDir()
	l, err := channel.Listen(dir, "maker")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asked := make(chan DeviceNode, 10)
	go func() {
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			for {
				var n DeviceNode
				fds, err := conn.Receive(&n)
				if err != nil {
					break
				}
				answer := NodeAnswer{Made: n.Minor == 3}
				if answer.Made {
					if err := unix.Mknodat(fds[0], n.Name, unix.S_IFIFO|0o600, 0); err != nil { // which a test may make
						answer.Error = err.Error()
					}
				}
				channel.Close(fds)
				asked <- n
				_ = conn.Send(answer)
			}
			_ = conn.Close()
		}
	}()
	node := func(name string, kind byte, minor int64) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Devmajor: 1, Devminor: minor, Mode: 0o640, Uid: 1, Gid: 2}
	}
	image := wrap(entries(t, node("./null", tar.TypeChar, 3), tar.Header{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755}, node("./d/disk", tar.TypeBlock, 1),
		tar.Header{Name: "./link", Typeflag: tar.TypeLink, Linkname: "./d/disk"}, tar.Header{Name: "./d/link", Typeflag: tar.TypeLink, Linkname: "./link"},
		tar.Header{Name: "./other", Typeflag: tar.TypeLink, Linkname: "./null"}))
	if err := extract(t.TempDir(), bytes.NewReader(image)); err == nil || !strings.Contains(err.Error(), NodesVariable) {
		t.Errorf("without a maker: %v", err)
	}
	t.Setenv(NodesVariable, filepath.Join(dir, "maker"))
	to := t.TempDir()
	if err := extract(to, bytes.NewReader(image)); err != nil {
		t.Fatal(err)
	}
	for name, made := range map[string]bool{"null": true, "other": true, "d": true, "d/disk": false, "link": false, "d/link": false} {
		if _, err := os.Lstat(filepath.Join(to, name)); (err == nil) != made {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, want := range []DeviceNode{{Name: "null", Character: true, Major: 1, Minor: 3, UID: 1, GID: 2, Mode: 0o640}, {Name: "disk", Major: 1, Minor: 1, UID: 1, GID: 2, Mode: 0o640}} {
		if got := <-asked; got != want {
			t.Errorf("asked for %+v, and not for %+v", got, want)
		}
	}
}
