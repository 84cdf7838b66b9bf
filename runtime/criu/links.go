package criu

import (
	"errors"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/fdinfo"
	remap "github.com/checkpoint-restore/go-criu/v8/crit/images/remap-file-path"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// CheckLinks refuses, as FailedPrecondition, a dump in dir that has a file which is open by a name that is gone, while it has another one. CRIU gives such a
// file a name of its own for the restore, but takes it away again at the end of a dump that leaves the processes.
func CheckLinks(dir string) error {
	var linked *remap.RemapFilePathEntry
	err := eachRecord(dir, "remap-fpath.img", func(data []byte) error {
		var r remap.RemapFilePathEntry
		if err := proto.Unmarshal(data, &r); err != nil {
			return err
		}
		if r.GetRemapType() == remap.RemapType_LINKED {
			linked = &r
		}
		return nil
	})
	if err != nil || linked == nil {
		return err
	}
	path := "a file"
	err = eachRecord(dir, "files.img", func(data []byte) error {
		var f fdinfo.FileEntry
		if err := (proto.UnmarshalOptions{AllowPartial: true}).Unmarshal(data, &f); err != nil {
			return err
		}
		if f.GetReg() != nil && f.GetReg().GetId() == linked.GetOrigId() {
			path = "/" + f.GetReg().GetName()
		}
		return nil
	})
	return errors.Join(err, failure.New(errdefs.ErrFailedPrecondition, "have the program close the file or open it by its new name",
		"%s is open, its name is gone, and the file has another one", path))
}
