package pages

import (
	"io"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
)

// Registers gives the addresses that a thread uses as soon as it goes on: its stack, its own data, and where it says that it has
// ended. tid is its number in the images; a thread that has no image there, or is of another architecture than x86 and arm64, gives none.
func Registers(dir string, tid int) ([]uint64, error) {
	return readNumbered(dir, "core", tid, readRegisters)
}

func readRegisters(name string, r io.Reader) ([]uint64, error) {
	var e criucore.CoreEntry
	if err := readRecord(name, r, magicCore, &e, "its record is not a core entry"); err != nil {
		return nil, err
	}
	var all []uint64
	for _, addr := range []uint64{
		e.GetThreadInfo().GetGpregs().GetSp(), e.GetThreadInfo().GetGpregs().GetFsBase(), e.GetThreadInfo().GetClearTidAddr(),
		e.GetTiAarch64().GetGpregs().GetSp(), e.GetTiAarch64().GetTls(), e.GetTiAarch64().GetClearTidAddr(),
	} {
		if addr != 0 {
			all = append(all, addr)
		}
	}
	return all, nil
}
