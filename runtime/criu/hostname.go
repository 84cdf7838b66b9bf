package criu

import (
	"errors"
	"fmt"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// JoinUTS prepares the images in dir for a restore into the UTS namespace at path. It writes that namespace's names into them: CRIU writes those of the images also into a
// namespace that the container only joins, which is that of a whole pod. Source: CRIU 4.2, criu/uts_ns.c, prepare_utsns.
func JoinUTS(dir, path string) error {
	var names unix.Utsname
	if err := InNamespace(unix.CLONE_NEWUTS, path, func() error { return unix.Uname(&names) }); err != nil {
		return fmt.Errorf("read the hostname of the namespace %s: %w", path, err)
	}
	return setHostname(dir, unix.ByteSliceToString(names.Nodename[:]), unix.ByteSliceToString(names.Domainname[:]))
}

func setHostname(dir, node, domain string) error {
	return changeRecords(dir, "utsns-*.img", func(all []*utsns.UtsnsEntry) error {
		if len(all) != 1 {
			return errors.Join(errors.New("it has not one record"), errdefs.ErrDataLoss)
		}
		all[0].Nodename, all[0].Domainname = &node, &domain
		return nil
	})
}
