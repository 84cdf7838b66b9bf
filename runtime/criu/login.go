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
// on another host would be one of the same number here. A container's own sshd has such processes, too.
// Source: CRIU 4.2, criu/cr-restore.c, prepare_loginuid; proc_pid_loginuid(5).
func ForgetLogin(dir string) error {
	var pids []uint32
	if err := eachRecord(dir, "pstree.img", func(data []byte) error {
		var p pstree.PstreeEntry
		err := proto.Unmarshal(data, &p)
		pids = append(pids, p.GetPid())
		return err
	}); err != nil {
		return err
	}
	known := false
	for _, pid := range pids {
		if err := eachRecord(dir, fmt.Sprintf("core-%d.img", pid), func(data []byte) error {
			var c criu_core.CoreEntry
			err := proto.Unmarshal(data, &c)
			known = known || c.GetTc().GetLoginuid() != noLogin && c.GetTc() != nil && c.GetTc().Loginuid != nil
			return err
		}); err != nil {
			return err
		}
		if known {
			break
		}
	}
	if !known {
		return nil
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
