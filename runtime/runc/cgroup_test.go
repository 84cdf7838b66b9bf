package runc

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gorunc "github.com/containerd/go-runc"
)

// noted makes a container whose runc has noted these directories of its cgroup, below a directory of the test's.
func noted(t *testing.T, paths map[string]string, files map[string]string) Container {
	t.Helper()
	root := t.TempDir()
	c := Container{ID: "c", Runtime: &gorunc.Runc{Root: root, Command: filepath.Join(root, "no-runc")}}
	text := ""
	for controller, path := range paths {
		text += fmt.Sprintf(",%q:%q", controller, filepath.Join(root, path))
	}
	files["c/state.json"] = fmt.Sprintf(`{"id":"c","cgroup_paths":{%s}}`, text[min(1, len(text)):])
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestProcesses(t *testing.T) {
	for name, paths := range map[string]map[string]string{
		"version 1": {"devices": "group", "memory": "elsewhere"},
		"version 2": {"": "group"},
	} {
		c := noted(t, paths, map[string]string{"group/cgroup.procs": "1\n22\n", "group/below/more/cgroup.procs": "333\n", "group/below/cgroup.procs": "", "elsewhere/cgroup.procs": "9\n"})
		pids, err := c.Processes(t.Context())
		if err != nil || !slices.Equal(pids, []int{1, 22, 333}) {
			t.Errorf("%s: %v, %v", name, pids, err)
		}
	}
	// What cannot be found is asked of runc, which there is none of here.
	for name, c := range map[string]Container{
		"another format": noted(t, map[string]string{"memory": "group"}, map[string]string{"group/cgroup.procs": "1\n"}),
		"no cgroup":      noted(t, map[string]string{"": "group"}, map[string]string{}),
		"no number":      noted(t, map[string]string{"": "group"}, map[string]string{"group/cgroup.procs": "all\n"}),
	} {
		if pids, err := c.Processes(t.Context()); err == nil {
			t.Errorf("%s: %v", name, pids)
		}
	}
}

// TestThaw: runc is called where something is to be done, or it is not known.
func TestThaw(t *testing.T) {
	for _, test := range []struct {
		controller, file, content string
		called                    string
	}{
		{"", "cgroup.freeze", "0\n", ""},
		{"", "cgroup.freeze", "1\n", ""},
		{"freezer", "freezer.state", "THAWED\n", ""},
		{"freezer", "freezer.state", "FROZEN\n", ""},
		{"freezer", "freezer.state", "FREEZING\n", ""},
		{"", "another file", "", "state\nresume\n"},
	} {
		c := noted(t, map[string]string{test.controller: "group"}, map[string]string{"group/" + test.file: test.content})
		calls := filepath.Join(c.Runtime.Root, "calls")
		script := "#!/bin/sh\nfor last; do case $last in state|resume) echo $last >>" + calls + ";; esac; done\necho '{\"status\":\"paused\"}'\n"
		if err := os.WriteFile(c.Runtime.Command, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		err := c.Thaw(t.Context())
		called, _ := os.ReadFile(calls)
		if err != nil || string(called) != test.called {
			t.Errorf("%s %q: called %q, %v", test.file, test.content, called, err)
		}
		if now, _ := os.ReadFile(filepath.Join(c.Runtime.Root, "group", test.file)); test.controller+test.file != "another file" && now[0] != '0' && now[0] != 'T' {
			t.Errorf("it is left at %q", now)
		}
	}
}

// TestPause: a cgroup of version 2 is frozen without runc, and thawed where it does not stand still.
func TestPause(t *testing.T) {
	defer func(before time.Duration) { freezeTime = before }(freezeTime)
	freezeTime = 50 * time.Millisecond
	for _, test := range []struct {
		controller, events string
		freeze             string // in the end
		fails              bool
	}{
		{"", "populated 1\nfrozen 1\n", "1", false},
		{"", "populated 1\nfrozen 0\n", "0", true},
		{"", "populated 1\nfrozen 10\n", "0", true},
		{"devices", "populated 1\nfrozen 1\n", "0", true}, // there is no runc
	} {
		c := noted(t, map[string]string{test.controller: "group"}, map[string]string{"group/cgroup.freeze": "0", "group/cgroup.events": test.events})
		err := c.Pause(t.Context())
		now, _ := os.ReadFile(filepath.Join(c.Runtime.Root, "group", "cgroup.freeze"))
		if string(now) != test.freeze || (err != nil) != test.fails {
			t.Errorf("%+v: left at %q, %v", test, now, err)
		}
	}
}

// TestPauseAgain has a runc that cannot freeze the cgroup the first times, or at all, or that fails otherwise.
func TestPauseAgain(t *testing.T) {
	for _, test := range []struct {
		reason       string
		fails, calls int
		err          bool
	}{{unableToFreeze, 0, 1, false}, {unableToFreeze, 2, 3, false}, {unableToFreeze, 99, pauseTries, true}, {"container not running", 99, 1, true}} {
		dir := t.TempDir()
		calls, log := filepath.Join(dir, "calls"), filepath.Join(dir, "log")
		script := fmt.Sprintf("#!/bin/sh\necho >>%s\n[ $(wc -l <%[1]s) -gt %d ] && exit\necho '{\"level\":\"error\",\"msg\":\"%s\"}' >>%s\nexit 1\n", calls, test.fails, test.reason, log)
		program := filepath.Join(dir, "runc")
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		c := Container{ID: "c", Runtime: &gorunc.Runc{Root: dir, Command: program, Log: log, LogFormat: gorunc.JSON}}
		err := c.Pause(t.Context())
		called, _ := os.ReadFile(calls)
		if (err != nil) != test.err || len(called) != test.calls {
			t.Errorf("%+v: %d calls, %v", test, len(called), err)
		}
		if test.err && !strings.HasSuffix(err.Error(), test.reason) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}
