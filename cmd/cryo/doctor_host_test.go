package main

import (
	"testing"

	"github.com/cryo-project/cryo/shim/config"
)

// TestCheckConfig: a repository that is allowed, and for which nothing is said of signatures, is a worry.
func TestCheckConfig(t *testing.T) {
	c := config.Default()
	c.Restore.Policy.Repositories = []string{"r.example.com/prod", "r.example.com/scratch"}
	c.Trust.Repositories = map[string]config.Signers{"r.example.com/scratch": nil}
	all := checkConfig(t.Context(), &patient{doctorOptions: doctorOptions{Config: c}})
	if len(all) != 2 || all[0].Status != good || all[1].Status != worry || all[1].Name != "signatures" || all[1].Mend == "" {
		t.Errorf("it finds %+v", all)
	}
}

// TestCheckSharing: a host whose restored containers shall share memory, and whose kernel does not look for equal memory, is a worry.
func TestCheckSharing(t *testing.T) {
	root := t.TempDir()
	for _, share := range []bool{false, true} {
		c := config.Default()
		c.Restore.ShareMemory = share
		all := checkConfig(t.Context(), &patient{doctorOptions: doctorOptions{Config: c}, root: root})
		if worried := len(all) == 2 && all[1].Name == "shared memory" && all[1].Status == worry && all[1].Mend != ""; worried != share || len(all) > 2 {
			t.Errorf("share-memory = %v: it finds %+v", share, all)
		}
	}
}
