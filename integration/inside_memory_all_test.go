package integration

import "testing"

// TestInsideTmpfsFiles has all kinds of files in /dev/shm, one of which is large, also for a user namespace's root.
func TestInsideTmpfsFiles(t *testing.T) {
	for _, test := range []struct {
		name string
		run  []string
	}{
		{"", nil},
		{"user namespace", []string{"--uidmap", "0:100000:5000000", "--gidmap", "0:100000:5000000"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			travel(t, journey{run: append([]string{"--mount", "type=tmpfs,src=tmpfs,dst=/cache,options=size=256m:mode=1777"}, test.run...)},
				"tmpfs", "--dir", "/cache/files", "--large", "120")
		})
	}
}
