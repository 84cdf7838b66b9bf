package criu

import (
	"fmt"
	"slices"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/mm"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/vma"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// mergeable is the bit of a mapping in which the kernel looks for pages with equal contents. Source: CRIU 4.2, criu/proc_parse.c, __parse_vmflags.
const mergeable = 1 << unix.MADV_MERGEABLE

// AdaptMemory changes what the images in dir say of processes' memory to what suits this host.
//
// Unless share, a process that shared all its memory with others where it was saved shares none here: this host's configuration decides (restore.share-memory), and CRIU fails on a kernel without KSM. CRIU saves
// such sharing as advice for each mapping, as if the process had given it. A process gives advice for memory that it knows to have equal pages, and never for its stack: advice stays if the stack has none.
// Source: CRIU 4.2, criu/pie/restorer.c, __export_restore_task.
//
// A private mapping that is larger than memory and swap of this host, as programs such as Chromium and MariaDB reserve without access (PROT_NONE), gets MAP_NORESERVE. CRIU first maps it writable, and the kernel
// would refuse that unless it always overcommits. Sources: CRIU 4.2, criu/mem.c, premap_private_vma; Linux, mm/util.c, __vm_enough_memory.
func AdaptMemory(dir string, share bool) error {
	most, err := hostMemory()
	if err != nil {
		return err
	}
	return changeRecords(dir, "mm-*.img", func(all []*mm.MmEntry) error {
		forget := !share && slices.ContainsFunc(all, sharesAll)
		for _, m := range all {
			for _, v := range m.GetVmas() {
				if forget && v.GetMadv()&mergeable != 0 {
					v.Madv = proto.Uint64(v.GetMadv() &^ mergeable)
				}
				if overReserved(v, most) {
					v.Flags = proto.Uint32(v.GetFlags() | unix.MAP_NORESERVE)
				}
			}
		}
		return nil
	})
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

// overReserved reports whether a mapping is private, counts as reserved, and is larger than most, in bytes.
func overReserved(v *vma.VmaEntry, most uint64) bool {
	return v.GetFlags()&unix.MAP_PRIVATE != 0 && v.GetFlags()&unix.MAP_NORESERVE == 0 && v.GetEnd() > v.GetStart() && v.GetEnd()-v.GetStart() > most
}

// hostMemory returns the size of the memory and swap of this host, in bytes.
func hostMemory() (uint64, error) {
	var host unix.Sysinfo_t
	if err := unix.Sysinfo(&host); err != nil {
		return 0, fmt.Errorf("read the size of the host's memory: %w", err)
	}
	return (uint64(host.Totalram) + uint64(host.Totalswap)) * uint64(host.Unit), nil
}
