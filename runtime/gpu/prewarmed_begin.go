package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/runtime/channel"
)

// spare is the least that is left free on each device beside what is loaded, and what else its processes will want: bytes.
const spare = 256 << 20

// spare is what is left free on a device: a process takes as much for each piece, when it makes it its own.
func (i Prewarmed) spare(uuid string) int64 {
	least := int64(spare)
	for _, p := range i.Pieces {
		if p.Device == uuid {
			least = max(least, p.Size)
		}
	}
	return least
}

// PrewarmedBeginning is the right to load device memory and to make room for it. No other process has it until Close.
type PrewarmedBeginning struct {
	dir  *PrewarmedDir
	lock *os.File
	all  []Prewarmed
}

// Begin waits for that right.
func (d *PrewarmedDir) Begin(ctx context.Context) (*PrewarmedBeginning, error) {
	lock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	b := &PrewarmedBeginning{dir: d, lock: lock}
	if b.all, err = d.list(ctx, true); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Close gives the right back.
func (b *PrewarmedBeginning) Close() error { return b.lock.Close() }

// Again reports whether the same is loaded already, which counts as use.
func (b *PrewarmedBeginning) Again(i Prewarmed) (bool, error) {
	at := slices.IndexFunc(b.all, func(o Prewarmed) bool { return !o.Leased && o.Version == prewarmedVersion && o.same(i) }) // what is leased will be gone
	if at < 0 {
		return false, nil
	}
	now := time.Now()
	if err := os.Chtimes(filepath.Join(b.all[at].dir, infoName), now, now); err != nil {
		return false, fmt.Errorf("prewarm: %w", err)
	}
	return true, nil
}

// Room makes room on each device for what is to be loaded, and for rest, by UUID, which the snapshot's processes want there beside: others are ended,
// the least recently used first, that no restore has. It gives those. budget is for all on one device, in bytes; 0: what is
// free, by i's facts. Where it cannot make room it ends nothing, and gives an error of kind ResourceExhausted.
func (b *PrewarmedBeginning) Room(i Prewarmed, rest map[string]int64, budget int64) ([]Prewarmed, error) {
	var chosen []Prewarmed
	need := i.Bytes()
	for _, d := range i.Facts.Devices {
		if need[d.UUID] == 0 {
			continue
		}
		var loaded, ended int64
		beside, busy := rest[d.UUID]+i.spare(d.UUID), 0
		for _, o := range b.all {
			loaded += o.Bytes()[d.UUID]
		}
		for _, o := range chosen {
			ended += o.Bytes()[d.UUID]
		}
		fits := func() bool {
			return (budget == 0 || loaded-ended+need[d.UUID] <= budget) && need[d.UUID]+beside <= d.Free+ended
		}
		for _, o := range b.all {
			if fits() {
				break
			}
			bytes := o.Bytes()[d.UUID]
			if bytes == 0 || slices.ContainsFunc(chosen, func(c Prewarmed) bool { return c.dir == o.dir }) {
				continue
			}
			if o.Leased {
				busy++
				continue
			}
			chosen, ended = append(chosen, o), ended+bytes
		}
		if !fits() {
			if loaded-ended+need[d.UUID] <= budget {
				budget = 0 // it would fit into that
			}
			return nil, roomError(d.UUID, need[d.UUID], beside, d.Free+ended, budget, busy)
		}
	}
	for n, o := range chosen {
		if err := discard(o.dir); err != nil {
			return chosen[:n], fmt.Errorf("make room on a GPU: %w", err)
		}
		b.all = slices.DeleteFunc(b.all, func(other Prewarmed) bool { return other.dir == o.dir })
	}
	return chosen, nil
}

// readyTime bounds how long the process may take to begin.
const readyTime = 30 * time.Second

// Keep has a process of its own keep memory that is loaded, by the descriptors of all its pieces in their order, which remain the caller's. program is the path of one that
// calls [ServePrewarmed] for [PrewarmedCommand]; empty: the running one does. When it returns without an error, that process lives on by itself; else nothing of it is left.
func (b *PrewarmedBeginning) Keep(ctx context.Context, program string, i Prewarmed, files []*os.File) (err error) {
	if len(files) != len(i.Pieces) || len(files) == 0 {
		return fmt.Errorf("keep device memory: %d descriptors for %d pieces: %w", len(files), len(i.Pieces), errdefs.ErrInvalidArgument)
	}
	i.Version, i.Created = prewarmedVersion, time.Now()
	if err := b.dir.make(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.dir.path, unfinished)
	if err != nil {
		return fmt.Errorf("keep device memory: %w", err)
	}
	named := filepath.Join(b.dir.path, strings.TrimPrefix(filepath.Base(dir), unfinished))
	defer func() {
		if err != nil {
			err = errors.Join(err, discard(dir), discard(named))
			_ = os.Remove(b.dir.path) // unless something is in it
		}
	}()
	info, err := i.write(dir)
	if err != nil {
		return fmt.Errorf("keep device memory: %w", err)
	}
	defer info.Close()
	own, other, err := channel.Pair()
	if err != nil {
		return err
	}
	defer own.Close() // by which it ends, unless it was told to live on
	command := exec.Command(cmp.Or(program, "/proc/self/exe"), PrewarmedCommand)
	command.ExtraFiles = slices.Concat([]*os.File{other, info}, files)
	command.Dir = "/"
	command.Env = []string{"GOMAXPROCS=2"}
	command.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	// What the caller has left open for its children, a lock perhaps, is not for one that lives on. Before Linux 5.11 it is.
	_ = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	err = command.Start()
	other.Close()
	if err != nil {
		return fmt.Errorf("start the process that keeps device memory: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // it lives on, or its socket says that it does not
	}()
	defer func() {
		if err != nil {
			_ = command.Process.Kill() // it may have ended
			<-ended
		}
	}()
	leaveCgroups(ctx, command.Process.Pid)
	defer time.AfterFunc(readyTime, func() { _ = command.Process.Kill() }).Stop()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	if err = hear(own); err == nil { // it has locked its file
		if err = os.Rename(dir, named); err == nil {
			err = own.Send(struct{}{})
		}
	}
	if !stop() { // it is being killed
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("hand device memory to the process that keeps it: %w", err)
	}
	return nil
}

// leaveCgroups takes a process out of the cgroups of its starter, which may end with a session. Where that is not possible, it stays.
func leaveCgroups(ctx context.Context, pid int) {
	for _, path := range cgroupRoots("/") {
		if err := os.WriteFile(filepath.Join(path, "cgroup.procs"), []byte(fmt.Sprint(pid)), 0); err != nil {
			log.G(ctx).WithError(err).Debug("take a process out of its cgroup")
		}
	}
}
