package integration

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// seccompProfile lets acct(2) fail in a way that nothing else gives (ELIBBAD), and allows the rest.
const seccompProfile = `{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
"syscalls": [{"names": ["acct"], "action": "SCMP_ACT_ERRNO", "errnoRet": 80}]}`

// TestInsideIdentity has processes of other users, capabilities and seccomp filters than usual. All that the kernel says
// of them in /proc/self/status is as before, and a forbidden call is still forbidden.
func TestInsideIdentity(t *testing.T) {
	a, _ := pair(t)
	profile := filepath.Join(a.Dir, "seccomp.json")
	if err := os.WriteFile(profile, []byte(seccompProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		run     []string
		restore []string
		want    map[string]any // of the state; the rest has to be as it was
	}{
		{"user namespace", []string{"--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "--user", "1000:2000"}, nil,
			map[string]any{"Uid": "1000 1000 1000 1000", "Gid": "2000 2000 2000 2000"}},
		{"root", nil, nil, map[string]any{"Uid": "0 0 0 0", "Seccomp": "0"}},
		{"user", []string{"--user", "1000:2000", "--cwd", "/srv", "--hostname", "elsewhere", "--rlimit-nofile", "500:1000"}, nil,
			map[string]any{"Uid": "1000 1000 1000 1000", "Gid": "2000 2000 2000 2000", "CapEff": "0000000000000000", "hostname": "elsewhere", "directory": "/srv"}},
		{"groups", []string{"--user", "alice"}, nil, map[string]any{"Uid": "1000 1000 1000 1000", "Groups": "1000 2000"}},
		{"capabilities dropped", []string{"--cap-drop", "CAP_CHOWN", "--cap-drop", "CAP_NET_RAW"}, nil, map[string]any{"CapBnd": "00000000a80405fa"}},
		{"capabilities added", []string{"--cap-add", "CAP_SYS_PTRACE", "--allow-new-privs"}, []string{"--allow", "capabilities"},
			map[string]any{"CapEff": "00000000a80c25fb", "NoNewPrivs": "0"}},
		{"seccomp", []string{"--seccomp"}, nil, map[string]any{"Seccomp": "2", "acct": "operation not permitted"}},
		{"seccomp profile", []string{"--seccomp", "--seccomp-profile", profile}, nil, map[string]any{"Seccomp": "2", "acct": "accessing a corrupted shared library"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if slices.Contains(test.run, "--user") && !slices.Contains(test.run, "--uidmap") {
				readsLimits(t)
			}
			before, after := travel(t, journey{run: test.run, restore: test.restore}, "identity")
			for key, want := range test.want {
				if before.State[key] != want {
					t.Errorf("before the snapshot, %s is %q, not %q", key, before.State[key], want)
				}
			}
			if !reflect.DeepEqual(before.State, after.State) {
				t.Errorf("was\n%v\nis\n%v", before.State, after.State)
			}
		})
	}
}

// readsLimits skips the test where root may not read the limits of another user's processes, as CRIU must, see
// prlimit(2). Root of a container that runs a machine's tests often lacks CAP_SYS_RESOURCE.
func readsLimits(t *testing.T) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		t.Fatal(err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		t.Skip("root has no CAP_SYS_RESOURCE here, without which CRIU cannot dump processes of other users")
	}
}
