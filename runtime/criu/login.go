package criu

import (
	"fmt"

	criu_core "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

// noLogin is the login id of a process that no login has started. Source: Linux, include/uapi/linux/audit.h, AUDIT_UID_UNSET.
const noLogin = 1<<32 - 1

// ForgetLogin takes the login ids out of the images in dir, so that restored processes have the one of their new host. A process that the kernel's audit knows by the login of a person
// on another host would be one of the same number here. If the first process has no login id, the others are not looked at: they have inherited it.
// Source: CRIU 4.2, criu/cr-restore.c, prepare_loginuid; proc_pid_loginuid(5).
func ForgetLogin(dir string) error {
	var first *pstree.PstreeEntry
	if err := eachRecord(dir, "pstree.img", func(data []byte) error {
		if first != nil {
			return nil
		}
		first = &pstree.PstreeEntry{}
		return proto.Unmarshal(data, first)
	}); err != nil || first == nil {
		return err
	}
	known := false
	if err := eachRecord(dir, fmt.Sprintf("core-%d.img", first.GetPid()), func(data []byte) error {
		var c criu_core.CoreEntry
		err := proto.Unmarshal(data, &c)
		known = known || c.GetTc().GetLoginuid() != noLogin && c.GetTc().Loginuid != nil
		return err
	}); err != nil || !known {
		return err
	}
	return changeRecords(dir, "core-*.img", func(all []*criu_core.CoreEntry) error {
		for _, c := range all {
			if c.Tc != nil {
				c.Tc.Loginuid = nil
			}
		}
		return nil
	})
}
