package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// TestTrustAsker: what nobody types must be signed, but for repositories that say otherwise.
func TestTrustAsker(t *testing.T) {
	for text, want := range map[string]struct{ person, machine, scratch bool }{
		"":                              {true, false, false},
		"[trust]\ndefault = 'unsigned'": {true, false, false},
		"[trust]\ndefault = 'signed'":   {false, false, false},
		"[trust.repositories]\n'r.example.com/scratch' = 'unsigned'": {true, false, true},
	} {
		c, err := parse("f", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		takes := func(by Asker, ref string) bool {
			p, err := c.Trust.Policy(by)
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Judge([]string{ref}, digest.FromString("x"), nil, nil)
			return err == nil
		}
		if p, m, s := takes(Person, "r.example.com/a:1"), takes(Machine, "r.example.com/a:1"), takes(Machine, "r.example.com:443/scratch/a:1"); p != want.person || m != want.machine || s != want.scratch {
			t.Errorf("%s: a person %v, a machine %v, scratch %v", text, p, m, s)
		}
	}
}

// TestSettles: for which repositories something is said of signatures.
func TestSettles(t *testing.T) {
	for text, want := range map[string]bool{
		"":                   false,
		"default = 'signed'": false,
		"keys = ['/a.pub']":  true,
		"[trust.repositories]\n'r.example.com' = 'unsigned'":               true,
		"[trust.repositories]\n'r.example.com:443/prod' = ['/a.pub']":      true,
		"[trust.repositories]\n'r.example.com/prod/app' = ['/a.pub']":      true,
		"[trust.repositories]\n'r.example.com/production' = ['/a.pub']":    false,
		"[trust.repositories]\n'r.example.com:5000/prod/app' = 'unsigned'": false,
	} {
		c, err := parse("f", []byte("[trust]\n"+text))
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Trust.Settles("r.example.com/prod"); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestLoad(t *testing.T) {
	tests := []struct {
		name, text string
		ok         bool
	}{
		{"empty", "", true},
		{"all", "root = '/r'\ncriu = '/x/criu'\n[dump]\nghost-limit = 1\ntimeout = 5\nnetwork-lock = 'skip'\n[restore]\nlazy = false\nfill-rate = 100\ntimeout = 600\nshare-memory = true\n[prewarm]\ndisk = 1\ngpu = 40960\n[gpu]\ntimeout = 3\ncdi = ['/etc/cdi']\nengine = 'keeper'\n", true},
		{"unknown key", "rot = '/r'\n", false},
		{"unknown key in a table", "[dump]\nghostlimit = 1\n", false},
		{"not TOML", "{", false},
		{"relative root", "root = 'r'\n", false},
		{"criu by another name", "criu = '/usr/bin/criu-4'\n", false},
		{"pulls that expire late", "[store]\npartial-pulls = 30\n", true},
		{"pulls that expire before", "[store]\npartial-pulls = -1\n", false},
		{"negative limit", "[dump]\nghost-limit = -1\n", false},
		{"endless limit", "[dump]\nghost-limit = 9000000000000000\n", false},
		{"endless timeout", "[dump]\ntimeout = 100000\n", false},
		{"negative rate", "[restore]\nfill-rate = -1\n", false},
		{"no time for a registry", "[restore]\nregistry-timeout = 0\n", true},
		{"negative time for a registry", "[restore]\nregistry-timeout = -1\n", false},
		{"a registry away for more than 30 days", "[restore]\nregistry-timeout = 2592001\n", false},
		{"no time for a restore", "[restore]\ntimeout = 0\n", false},
		{"negative budget", "[prewarm]\ndisk = -1\n", false},
		{"endless budget", "[prewarm]\ndisk = 9000000000000000\n", false},
		{"negative budget of GPUs", "[prewarm]\ngpu = -1\n", false},
		{"no timeout for GPUs", "[gpu]\ntimeout = 0\n", false},
		{"no such engine", "[gpu]\nengine = 'fast'\n", false},
		{"directories of hosts", "[registry]\nhosts = '/a:/b'\n", true},
		{"no hosts", "[registry]\nhosts = ''\n", true},
		{"relative directory of hosts", "[registry]\nhosts = '/a:b'\n", false},
		{"relative directory of CDI files", "[gpu]\ncdi = ['cdi']\n", false},
		{"trust", "[trust]\ndefault = 'signed'\nkeys = ['/a.pub']\n[trust.repositories]\n'a.b' = ['/b.pub', '/c.pub']\n'a.b:5000/c/d' = 'unsigned'\n'docker.io/library' = 'unsigned'\nlocalhost = 'unsigned'\n", true},
		{"no such default", "[trust]\ndefault = 'maybe'\n", false},
		{"relative key", "[trust]\nkeys = ['a.pub']\n", false},
		{"relative key of a repository", "[trust.repositories]\n'a.b' = ['a.pub']\n", false},
		{"neither keys nor unsigned", "[trust.repositories]\n'a.b' = 'signed'\n", false},
		{"no keys", "[trust.repositories]\n'a.b' = []\n", false},
		{"prefix without a registry", "[trust.repositories]\n'team' = 'unsigned'\n", false},
		{"prefix without a registry, with a path", "[trust.repositories]\n'team/app' = 'unsigned'\n", false},
		{"prefix with a tag", "[trust.repositories]\n'a.b/c:1' = 'unsigned'\n", false},
		{"prefix with a digest", "[trust.repositories]\n'a.b/c@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef' = 'unsigned'\n", false},
		{"prefix that ends with a slash", "[trust.repositories]\n'a.b/c/' = 'unsigned'\n", false},
		{"prefix in upper case", "[trust.repositories]\n'A.b/c' = 'unsigned'\n", false},
		{"prefix with a pattern", "[trust.repositories]\n'a.b/*' = 'unsigned'\n", false},
		{"one registry twice", "[trust.repositories]\n'r.example.com' = 'unsigned'\n'r.example.com:443' = 'unsigned'\n", false},
		{"former name of a registry", "[trust.repositories]\n'index.docker.io' = 'unsigned'\n", false},
		{"empty prefix", "[trust.repositories]\n'' = 'unsigned'\n", false},
		{"unknown lock", "[dump]\nnetwork-lock = 'ufw'\n", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.toml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("CRYO_CONFIG", path)
			c, err := Load("")
			if test.ok {
				if err != nil || c.Root == "" {
					t.Errorf("got %+v, %v", c, err)
				}
				return
			}
			if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestDocumented: what the documentation shows, which packages install as an example, is a configuration, and has every key.
func TestDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../cmd/cryo/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "\n```toml\n")
	text, _, _ = strings.Cut(text, "\n```\n")
	if _, err := parse("README.md", []byte(text)); err != nil {
		t.Error(err)
	}
	for _, key := range keys(reflect.TypeFor[Config]()) {
		if !strings.Contains("\n"+text, "\n"+key) {
			t.Errorf("cmd/cryo/README.md does not show %s", key)
		}
	}
}

// keys are the beginnings of the lines by which all keys of a type are set.
func keys(of reflect.Type) (all []string) {
	for i := range of.NumField() {
		switch name, field := of.Field(i).Tag.Get("toml"), of.Field(i).Type; {
		case field.Kind() == reflect.Struct:
			all = append(all, keys(field)...)
		case field.Kind() != reflect.Map:
			all = append(all, name+" = ")
		}
	}
	return all
}

// What is wrong is said with its line, and without words of Go.
func TestLoadSaysWhere(t *testing.T) {
	for text, want := range map[string]string{
		"root = 1\n":                             "line 1: root is to be text in quotes",
		"\n[dump]\nghost-limit = 'a'\n":          "line 3: dump.ghost-limit is to be a whole number",
		"[restore]\nlazy = 1\n":                  "line 2: restore.lazy is to be true or false",
		"[gpu]\ncdi = '/etc/cdi'\n":              "line 2: gpu.cdi is to be a list of text in quotes",
		"dump = 3\n":                             "line 1: dump is to be a table",
		"\n\n{":                                  "line 3: invalid character at start of key: U+007B '{'",
		"[dump]\nghostlimit = 1\n[gpu]\nx = 2\n": "line 2: there is no key dump.ghostlimit\nline 4: there is no key gpu.x",
	} {
		_, err := parse("/etc/x.toml", []byte(text))
		if err == nil || err.Error() != "read configuration /etc/x.toml: "+want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestNamedFileMustExist(t *testing.T) {
	t.Setenv("CRYO_CONFIG", filepath.Join(t.TempDir(), "absent.toml"))
	if _, err := Load(""); !errors.Is(err, errdefs.ErrInvalidArgument) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestFindCRIU(t *testing.T) {
	c := Default()
	c.CRIU = filepath.Join(t.TempDir(), "criu")
	if _, err := c.FindCRIU(); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("missing: got %v", err)
	}
	if err := os.WriteFile(c.CRIU, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if got, err := c.FindCRIU(); err != nil || got != c.CRIU {
		t.Errorf("got %q, %v", got, err)
	}
	t.Setenv("PATH", "/bin")
	if err := ExportPath(c.CRIU); err != nil {
		t.Fatal(err)
	}
	if got := os.Getenv("PATH"); got != filepath.Dir(c.CRIU)+":/bin" {
		t.Errorf("PATH became %q", got)
	}
}
