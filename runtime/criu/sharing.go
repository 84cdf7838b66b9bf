package criu

import (
	"fmt"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// mergeable is the bit of a mapping in which the kernel looks for pages with equal contents. Source: CRIU 4.2, criu/proc_parse.c, __parse_vmflags.
const mergeable = 1 << unix.MADV_MERGEABLE

// ForgetSharing takes out of the images in dir that processes shared memory with others where they were saved: whether they do here is this host's choice (restore.share-memory), and CRIU fails on a kernel without
// KSM. CRIU saves it as advice for each mapping, as if it were the process's. A process advises on memory that it knows to have equal pages, and not for its stack: what a process without advice for the
// stack has stays. Source: CRIU 4.2, criu/pie/restorer.c, __export_restore_task.
func ForgetSharing(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "mm-*.img"))
	if err != nil {
		return fmt.Errorf("find the images of processes' memory: %w", err)
	}
	for _, file := range files {
		shares := false
		if err := eachRecord(dir, filepath.Base(file), func(data []byte) error {
			var m mm.MmEntry
			err := proto.Unmarshal(data, &m)
			shares = shares || sharesAll(&m)
			return err
		}); err != nil {
			return err
		}
		if !shares {
			continue
		}
		if err := changeImage(file, func(all []*mm.MmEntry) error {
			for _, m := range all {
				for _, v := range m.GetVmas() {
					if v.GetMadv()&mergeable != 0 {
						v.Madv = proto.Uint64(v.GetMadv() &^ mergeable)
					}
				}
			}
			return nil
		}); err != nil {
			return fmt.Errorf("change %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// sharesAll reports whether a process shared all memory that it could, its stack included.
func sharesAll(m *mm.MmEntry) bool {
	for _, v := range m.GetVmas() {
		if v.GetStart() <= m.GetMmStartStack() && m.GetMmStartStack() < v.GetEnd() {
			return v.GetMadv()&mergeable != 0
		}
	}
	return false
}
