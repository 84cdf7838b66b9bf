package criu

import (
	"errors"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"github.com/containerd/errdefs"
)

// SetHostname gives the container's UTS namespace other names in the images in dir. CRIU writes those of the images also into a namespace that the container only joins,
// which is that of a whole pod. Source: CRIU 4.2, criu/uts_ns.c, prepare_utsns.
func SetHostname(dir, node, domain string) error {
	return changeRecords(dir, "utsns-*.img", func(all []*utsns.UtsnsEntry) error {
		if len(all) != 1 {
			return errors.Join(errors.New("it has not one record"), errdefs.ErrDataLoss)
		}
		all[0].Nodename, all[0].Domainname = &node, &domain
		return nil
	})
}
