package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cryo-project/cryo/image/store"
	"github.com/cryo-project/cryo/integration/storetest"
)

// cryo runs a command line with a root of its own.
func cryo(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("CRYO_ROOT", filepath.Join(t.TempDir(), "cryo"))
	t.Setenv("CRYO_CONFIG", "")
	t.Setenv("CONTAINERD_ADDRESS", filepath.Join(t.TempDir(), "none.sock"))
	var out, err bytes.Buffer
	code = (&app{stdout: &out, stderr: &err}).run(t.Context(), args)
	return code, out.String(), err.String()
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"nonsense", `there is no command "nonsense"`},
		{"chekpoint", "did you mean checkpoint?"},
		{"--nonsense", "unknown flag"},
		{"ls extra", "too many arguments"},
		{"checkpoint", "missing NAME and REF"},
		{"checkpoint c", "missing REF"},
		{"checkpoint c r --segment-size 3MiB", "power of two"},
		{"checkpoint c r --segment-size 1KiB", "power of two"},
		{"checkpoint c r --segment-size lots", "--segment-size"},
		{"checkpoint c r --compression lz4", "neither zstd nor none"},
		{"tag a", "missing NEW"},
		{"checkpoint c NotLower", "lower"},
		{"checkpoint c oci:/tmp/x", "cryo push"},
		{"checkpoint c r --concurrency 1000", "--concurrency"},
		{"checkpoint c r --gpu-timeout -1s", "between 0 and 1h"},
		{"checkpoint c r --gpu-timeout 2h", "between 0 and 1h"},
		{"checkpoint c r --gpu-timeout soon", "--gpu-timeout"},
		{"checkpoint c r --force gpu-nonsense", "gpu-nonsense"},
		{"restore r --device 0", "VENDOR/CLASS=NAME"},
		{"restore r --device nvidia.com/gpu=0,nvidia.com/gpu=1", "VENDOR/CLASS=NAME"},
		{"restore r --device nvidia.com/gpu=0 --device nvidia.com/gpu=0", "twice"},
		{"restore r --gpu 0", "OLD=NEW"},
		{"restore r --gpu 0=GPU-1", "UUID"},
		{"restore", "missing REF"},
		{"restore r --pull sometimes", "--pull"},
		{"restore r --allow everything", "--allow takes"},
		{"restore r --mount type=bind,src=/a", "absolute"},
		{"restore r --mount type=tmpfs,dst=/a", "bind"},
		{"restore r --log-uri /var/log/x", "file:///PATH"},
		{"restore r --log-uri file://host/x", "file:///PATH"},
		{"restore r --network-ns n", "absolute"},
		{"rm", "missing REF"},
		{"push", "missing REF"},
		{"push a b c", "too many"},
		{"pull r --password-stdin", "--user"},
		{"verify", "missing REF"},
		{"ls --config /no/such/file", "no/such/file"},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, stdout, stderr := cryo(t, strings.Fields(c.args)...)
			if code != exitUsage || stdout != "" || !strings.HasPrefix(stderr, "cryo: ") || !strings.Contains(stderr, c.says) {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
		})
	}
}

func TestErrorsWithoutDaemons(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
	}{
		{"checkpoint c r", exitUnavailable},
		{"restore r", exitUnavailable},
		{"inspect none", exitNotFound},
		{"verify none:v1", exitNotFound},
		{"push none", exitNotFound},
		{"rm none", exitNotFound},
		{"pull oci-archive:/no/such/file", exitNotFound},
		{"doctor", exitPrecondition},
	} {
		t.Run(c.args, func(t *testing.T) {
			code, _, stderr := cryo(t, strings.Fields(c.args)...)
			if code != c.code || !strings.HasPrefix(stderr, "cryo: ") || !strings.Contains(stderr, "\nhint: ") {
				t.Errorf("exit code %d, %q", code, stderr)
			}
		})
	}
}

func TestJSONIsAlwaysADocument(t *testing.T) {
	for _, args := range []string{"ls --json", "version --json", "doctor --json"} {
		_, stdout, _ := cryo(t, strings.Fields(args)...)
		var v any
		if err := json.Unmarshal([]byte(stdout), &v); err != nil || v == nil {
			t.Errorf("%s: %v: %q", args, err, stdout)
		}
	}
}

// TestEveryCommandIsDocumented: each has a summary and, if it runs, an example; flags have a description.
func TestEveryCommandIsDocumented(t *testing.T) {
	root := newRoot(&app{})
	for _, cmd := range append(root.Commands(), root) {
		if cmd.Short == "" {
			t.Errorf("%s has no summary", cmd.Name())
		}
		if cmd.Runnable() && cmd.Example == "" {
			t.Errorf("%s has no example", cmd.Name())
		}
		for _, word := range strings.Fields(cmd.Example) {
			name, ok := strings.CutPrefix(word, "--")
			if name, _, _ = strings.Cut(name, "="); ok && cmd.Name() != "cryo" && cmd.Flags().Lookup(name) == nil && root.PersistentFlags().Lookup(name) == nil {
				t.Errorf("%s: the example has the unknown flag --%s", cmd.Name(), name)
			}
		}
	}
	for _, sub := range root.Commands() {
		if code, out, _ := cryo(t, sub.Name(), "--help"); code != exitOK || out == "" {
			t.Errorf("%s --help: exit code %d", sub.Name(), code)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, out, _ := cryo(t, "completion", shell); code != exitOK || !strings.Contains(out, "cryo") {
			t.Errorf("completion %s: exit code %d", shell, code)
		}
	}
}

func TestFlagsWinOverEnvironment(t *testing.T) {
	t.Setenv("CONTAINERD_NAMESPACE", "k8s.io")
	a := &app{}
	root := newRoot(a)
	if a.namespace != "k8s.io" {
		t.Errorf("namespace %q from the environment", a.namespace)
	}
	if err := root.ParseFlags([]string{"-n", "mine", "-a", "/x.sock", "--root", "/r"}); err != nil {
		t.Fatal(err)
	}
	if a.namespace != "mine" || a.address != "/x.sock" || a.root != "/r" {
		t.Errorf("flags: %+v", a)
	}
}

func TestVersionFlag(t *testing.T) {
	code, stdout, stderr := cryo(t, "--version")
	if code != exitOK || stdout != "cryo "+versions().Version+"\n" || stderr != "" {
		t.Errorf("exit code %d: %q %q", code, stdout, stderr)
	}
}

// TestTag gives a snapshot one more name, and names one that is not there.
func TestTag(t *testing.T) {
	root := t.TempDir()
	s, err := store.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	d := storetest.MustPut(t, s, "a:1", storetest.Spec{Seed: 1, Segments: []uint64{1}})
	if code, stdout, stderr := cryo(t, "--root", root, "tag", d.Digest.Encoded()[:8], "b:2"); code != exitOK || stdout != "b:2 "+d.Digest.String()+"\n" {
		t.Errorf("exit code %d: %q %q", code, stdout, stderr)
	}
	if got, err := s.Resolve(t.Context(), "b:2"); err != nil || got.Digest != d.Digest {
		t.Errorf("b:2 is %s, %v", got.Digest, err)
	}
	if code, _, stderr := cryo(t, "--root", root, "tag", "c:1", "b:2"); code != exitNotFound {
		t.Errorf("exit code %d: %q", code, stderr)
	}
}

// TestCompletionOfFlags completes values of flags, and names of files only where the value is one.
func TestCompletionOfFlags(t *testing.T) {
	for _, c := range []struct {
		args  []string
		want  string // the first line
		files bool
	}{
		{[]string{"restore", "r", "--pull", ""}, "missing", false},
		{[]string{"restore", "r", "--allow", ""}, "mounts", false},
		{[]string{"checkpoint", "c", "r", "--compression", ""}, "zstd", false},
		{[]string{"checkpoint", "c", "r", "--segment-size", ""}, ":4", false},
		{[]string{"pull", "r", "--user", ""}, ":4", false},
		{[]string{"ls", "--namespace", ""}, ":4", false},
		{[]string{"sign", "r", "--key", ""}, ":0", true},
		{[]string{"ls", "--config", ""}, ":0", true},
	} {
		code, stdout, _ := cryo(t, append([]string{"__complete"}, c.args...)...)
		first, _, _ := strings.Cut(stdout, "\n")
		if code != exitOK || first != c.want || strings.Contains(stdout, ":4\n") == c.files {
			t.Errorf("%v: exit code %d, %q", c.args, code, stdout)
		}
	}
}
