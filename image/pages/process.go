package pages

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	criucore "github.com/checkpoint-restore/go-criu/v8/crit/images/criu-core"
	"github.com/checkpoint-restore/go-criu/v8/crit/images/pstree"
	"google.golang.org/protobuf/proto"
)

// Process is one process of the dumped tree.
type Process struct {
	PID     int    // inside its pid namespace
	Command string // at most 15 bytes, as the kernel keeps it
	Threads int
	TIDs    []int // of its threads, inside its pid namespace; none where the images do not say
}

// maxProcesses is what a pid namespace can hold (PID_MAX_LIMIT).
const maxProcesses = 1 << 22

// Processes reads the process tree, init first. A directory without pstree.img gives none.
func Processes(dir string) ([]Process, error) {
	f, err := os.Open(filepath.Join(dir, "pstree.img"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	tree, err := readTree("pstree.img", f)
	if err != nil {
		return nil, err
	}
	for i := range tree {
		if tree[i].Command, err = command(dir, tree[i].PID); err != nil {
			return nil, err
		}
	}
	return tree, nil
}

func readTree(name string, r io.Reader) ([]Process, error) {
	rs, err := newRecords(name, r, magicPSTree)
	if err != nil {
		return nil, err
	}
	var tree []Process
	for {
		record, err := rs.next()
		if err == io.EOF {
			return tree, nil
		} else if err != nil {
			return nil, err
		}
		var e pstree.PstreeEntry
		if err := proto.Unmarshal(record, &e); err != nil {
			return nil, Malformed(name, "a record is not a process: %v", err)
		}
		if e.GetPid() > maxProcesses || len(tree) == maxProcesses {
			return nil, Malformed(name, "pid %d or the number of processes is larger than any kernel allows", e.GetPid())
		}
		p := Process{PID: int(e.GetPid()), Threads: max(1, len(e.GetThreads()))}
		for _, tid := range e.GetThreads() {
			p.TIDs = append(p.TIDs, int(tid))
		}
		tree = append(tree, p)
	}
}

// command reads the name of a process from its core image; a process may have none (a zombie's is kept, a helper's not).
func command(dir string, pid int) (string, error) {
	name := fmt.Sprintf("core-%d.img", pid)
	f, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	} else if err != nil {
		return "", fmt.Errorf("read CRIU images: %w", err)
	}
	defer f.Close()
	return readCommand(name, f)
}

func readCommand(name string, r io.Reader) (string, error) {
	var e criucore.CoreEntry
	if err := readRecord(name, r, magicCore, &e, "its record is not a core entry"); err != nil {
		return "", err
	}
	// A name may hold any bytes (prctl PR_SET_NAME), and it goes to JSON and to terminals.
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == 0xfffd || c >= 0x80 && c < 0xa0 {
			return '?'
		}
		return c
	}, e.GetTc().GetComm()), nil
}
