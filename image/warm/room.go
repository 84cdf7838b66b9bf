package warm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/store"
)

// Need is how much memory a snapshot takes when it is prewarmed, in bytes: its pages that are not zero, and all blobs but
// the segments.
func Need(s *image.Snapshot) int64 {
	const page = 4096
	round := func(n int64) int64 { return (n + page - 1) / page * page }
	n := round(s.Config.Memory.Total-s.Config.Memory.Zero) + 8*page // directories and descriptions
	for _, d := range blobs(s) {
		n += round(d.Size)
	}
	return n
}

// Room makes room for what is needed within a budget, of which a part that is 0 means no bound: snapshots are removed, the least
// recently used first, that no restore uses. It gives what it has removed. Where it cannot make room it removes nothing, and gives
// a [*BudgetError], a [*BusyError], or a [*ShortError].
func (d *Dir) Room(ctx context.Context, need, budget Size) ([]Info, error) {
	lock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if is, err := d.mounted(); err != nil || !is {
		return nil, cmp.Or(err, fits(need, budget), available(need.Memory))
	}
	return d.room(need, budget)
}

// Keep is Room for a snapshot that is there: e, which stays, and takes size.
func (d *Dir) Keep(ctx context.Context, e *Entry, size, budget Size) ([]Info, error) {
	if err := fits(size, budget); err != nil {
		return nil, err
	}
	lock, err := d.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	return d.room(Size{}, budget) // who has an entry open keeps it
}

func fits(need, budget Size) error {
	switch {
	case budget.Memory > 0 && need.Memory > budget.Memory:
		return &BudgetError{What: "memory", Need: need.Memory, Budget: budget.Memory}
	case budget.Disk > 0 && need.Disk > budget.Disk:
		return &BudgetError{What: "disk", Need: need.Disk, Budget: budget.Disk}
	}
	return nil
}

// room is Room. The lock is held.
func (d *Dir) room(need, budget Size) (removed []Info, err error) {
	if err := fits(need, budget); err != nil {
		return nil, err
	}
	all, err := d.list()
	if err != nil {
		return nil, err
	}
	sum := need
	for _, i := range all {
		sum.Memory, sum.Disk = sum.Memory+i.Memory, sum.Disk+i.Disk
	}
	var chosen []Info
	busy := 0
	for _, i := range all {
		memory, disk := budget.Memory > 0 && sum.Memory > budget.Memory, budget.Disk > 0 && sum.Disk > budget.Disk
		if !memory && !(disk && i.Disk > 0) {
			continue
		}
		release, err := d.claim(i.Digest)
		if err != nil {
			return nil, err
		}
		if release == nil {
			busy++
			continue
		}
		defer release()
		chosen = append(chosen, i)
		sum.Memory, sum.Disk = sum.Memory-i.Memory, sum.Disk-i.Disk
	}
	if budget.Memory > 0 && sum.Memory > budget.Memory || budget.Disk > 0 && sum.Disk > budget.Disk {
		return nil, &BusyError{Snapshots: busy}
	}
	if err := available(sum.Memory - memoryOf(all)); err != nil {
		return nil, err
	}
	for _, i := range chosen {
		if err := d.discard(i.Digest); err != nil {
			return removed, err
		}
		removed = append(removed, i)
	}
	return removed, nil
}

// memoryOf is the memory of all entries.
func memoryOf(all []Info) (n int64) {
	for _, i := range all {
		n += i.Memory
	}
	return n
}

// claim has no restore begin with an entry until it is released; nil: one uses it, or its memory.
func (d *Dir) claim(dg digest.Digest) (release func(), err error) {
	var held []*os.File
	release = func() {
		for _, f := range held {
			f.Close()
		}
	}
	for _, name := range []string{lockName, memoryName} {
		f, err := os.OpenFile(filepath.Join(d.entry(dg), name), os.O_RDWR, 0)
		if err == nil {
			held = append(held, f)
			var ok bool
			if ok, err = store.TryLock(f, unix.LOCK_EX); err == nil && !ok {
				release()
				return nil, nil
			}
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("look whether a prewarmed snapshot is in use: %w", err)
		}
	}
	return release, nil
}

// discard removes an entry, at once for all who look for it.
func (d *Dir) discard(dg digest.Digest) error {
	dir, err := os.MkdirTemp(d.path, unfinished)
	if err == nil {
		err = os.Rename(d.entry(dg), filepath.Join(dir, "entry"))
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove a prewarmed snapshot: %w", err)
	}
	return nil
}

// Remove removes a snapshot when no restore begins with it any more. Memory that is being filled in from it comes to its end, and
// takes room until then. One that is not there gives a [*NotWarmError].
func (d *Dir) Remove(ctx context.Context, dg digest.Digest) error {
	lock, err := d.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	is, err := d.mounted()
	if err != nil {
		return err
	}
	var f *os.File
	if is {
		if f, err = openLocked(ctx, filepath.Join(d.entry(dg), lockName), os.O_RDWR, unix.LOCK_EX); err != nil {
			return err
		}
	}
	if f == nil {
		return &NotWarmError{Name: dg.String()}
	}
	err = d.discard(dg)
	f.Close()
	return errors.Join(err, d.unmount())
}
