package format

import (
	"fmt"
	"strings"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
)

// PagedProcess is one process of the dumped tree.
type PagedProcess struct {
	PID     int    // inside its pid namespace
	Command string // at most 15 bytes, as the kernel keeps it
	Threads int
	TIDs    []int // of its threads, inside its pid namespace; none where the images do not say
}

// maxProcesses is what a pid namespace can hold (PID_MAX_LIMIT).
const maxProcesses = 1 << 22

// PagedProcesses reads the process tree, init first. A directory without pstree.img has none.
func PagedProcesses(dir string) (tree []PagedProcess, err error) {
	const name = "pstree.img"
	body, err := readIn(dir, name, magicPSTree)
	if err != nil {
		return nil, err
	}
	err = each(name, body, func(record []byte) error {
		var e pstree.PstreeEntry
		if err := unmarshal(name, record, &e); err != nil {
			return err
		}
		if e.GetPid() > maxProcesses || len(tree) == maxProcesses {
			return MalformedImage(name, "pid %d or the number of processes is larger than any kernel allows", e.GetPid())
		}
		core, err := readCore(dir, int(e.GetPid()))
		if err != nil {
			return err
		}
		p := PagedProcess{PID: int(e.GetPid()), Threads: max(1, len(e.GetThreads())), Command: printable(core.GetTc().GetComm())}
		for _, tid := range e.GetThreads() {
			p.TIDs = append(p.TIDs, int(tid))
		}
		tree = append(tree, p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// readCore reads what the images have of a thread, by its number in them; a process may have nothing (a zombie's is kept, a helper's not).
func readCore(dir string, tid int) (*criucore.CoreEntry, error) {
	e := new(criucore.CoreEntry)
	return e, readFirst(dir, fmt.Sprintf("core-%d.img", tid), magicCore, e)
}

// printable is the name of a process, which may hold any bytes (prctl PR_SET_NAME), for JSON and terminals.
func printable(command string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0xfffd || c >= 0x80 && c < 0xa0 {
			return '?'
		}
		return c
	}, command)
}

// Registers returns the addresses that a thread uses as soon as it goes on: its stack, its own data, and where it says that it has
// ended. tid is its number in the images; a thread that has no image there, or is of another architecture than x86 and arm64, gives none.
func Registers(dir string, tid int) (all []uint64, err error) {
	e, err := readCore(dir, tid)
	if err != nil {
		return nil, err
	}
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
