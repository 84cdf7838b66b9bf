package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCLIDoctor shows hosts that are not well to the doctor: the exit code says so, and each trouble comes with its cure.
func TestCLIDoctor(t *testing.T) {
	a, _ := pair(t)
	config := filepath.Join(a.Dir, "home/doctor.toml")
	for _, test := range []struct {
		name, config string
		flags        []string
		sick         string // name of the check that fails
	}{
		{"no CRIU", `criu = "/nowhere/criu"`, nil, "criu"},
		{"wrong configuration", `criuu = "/nowhere/criu"`, nil, "configuration"},
		{"no containerd", "", []string{"--address", "/nowhere.sock"}, "containerd"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := os.WriteFile(config, []byte(test.config), 0o600); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"env", "CRYO_CONFIG=" + config, "cryo", "doctor", "--json"}, test.flags...)
			r := a.Run(t.Context(), args...)
			if r.Code != codePrecondition || !strings.Contains(r.Stderr, "\nhint: ") {
				t.Errorf("exit code %d, want %d and a hint:\n%s", r.Code, codePrecondition, r.Stderr)
			}
			var all []struct{ Name, Status, Mend string }
			if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
				t.Fatalf("%v:\n%s", err, r.Stdout)
			}
			var sick []string
			for _, x := range all {
				if x.Status == "fail" {
					sick = append(sick, x.Name)
					if x.Mend == "" {
						t.Errorf("%s fails without a cure", x.Name)
					}
				}
			}
			if len(sick) == 0 || sick[0] != test.sick {
				t.Errorf("the doctor found %v, want %s first", sick, test.sick)
			}
		})
	}
}
