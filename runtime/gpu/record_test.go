package gpu

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestReadRecord(t *testing.T) {
	device := `{"uuid":"` + uuidA + `","memory":1}`
	for _, test := range []struct {
		name, text string
		ok         bool
	}{
		{"full", `{"engine":"driver","driver":"580.1","devices":[` + device + `],"processes":[{"pid":1,"command":"a","memory":1,"devices":["` + uuidA + `"]}],"cdi":["nvidia.com/gpu=0"]}`, true},
		{"of a later version", `{"engine":"driver","later":true}`, true},
		{"another engine", `{"engine":"keeper"}`, false},
		{"no engine", `{}`, false},
		{"not JSON", `{`, false},
		{"no UUID", `{"engine":"driver","devices":[{"uuid":"0"}]}`, false},
		{"a GPU twice", `{"engine":"driver","devices":[` + device + `,` + device + `]}`, false},
		{"another's GPU", `{"engine":"driver","processes":[{"pid":1,"devices":["` + uuidA + `"]}]}`, false},
		{"no process", `{"engine":"driver","processes":[{"pid":0}]}`, false},
		{"a process twice", `{"engine":"driver","processes":[{"pid":1},{"pid":1}]}`, false},
		{"less than nothing", `{"engine":"driver","processes":[{"pid":1,"memory":-1}]}`, false},
		{"no CDI device", `{"engine":"driver","cdi":["/etc/passwd"]}`, false},
		{"too long", `{"engine":"driver","x":"` + strings.Repeat("x", maxRecord) + `"}`, false},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RecordName), []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(dir)
		if (err == nil) != test.ok || (r != nil) != test.ok {
			t.Errorf("%s: got %v, %v", test.name, r, err)
		}
		if err != nil && !errors.Is(err, errdefs.ErrDataLoss) {
			t.Errorf("%s: %v is not of kind DataLoss", test.name, err)
		}
	}
	if r, err := ReadRecord(t.TempDir()); r != nil || err != nil {
		t.Errorf("none: got %v, %v", r, err)
	}
}

// FuzzReadRecord: a record may come from a registry.
func FuzzReadRecord(f *testing.F) {
	f.Add([]byte(`{"engine":"driver","devices":[{"uuid":"` + uuidA + `"}],"edits":{"mounts":[{"destination":"/x"}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, RecordName), data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := ReadRecord(dir)
		if err != nil {
			return
		}
		again := t.TempDir()
		if err := r.WriteFile(again); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadRecord(again); err != nil {
			t.Errorf("what was read cannot be written and read: %v", err)
		}
	})
}
