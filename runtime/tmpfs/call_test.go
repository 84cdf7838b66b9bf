package tmpfs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/runtime/standin"
)

// TestMain makes of the test's program what the shim's is.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == standin.Tar {
		os.Exit(Main(os.Args))
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
	link := filepath.Join(t.TempDir(), standin.Tar)
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Cmd{Path: link, Args: append([]string{standin.Tar}, args...), Stdin: bytes.NewReader(in), Stdout: &stdout, Stderr: &stderr}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.String()
}

func TestMainAsCRIUCalls(t *testing.T) {
	dir, to := tree(t), t.TempDir()
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

	status, _, complaint = call(t, image[:len(image)/2], append(extractTo[:len(extractTo)-1:len(extractTo)-1], t.TempDir())...)
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
