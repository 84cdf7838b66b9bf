package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
)

// keepers has two keepers pass device memory on, without any container: what the link gives to the engine "keeper".
func (b *bench) keepers(ctx context.Context, r *result, gib, rounds int) error {
	for range rounds {
		if err := passOn(ctx, r, b.lab.Tool("cryo-gpu-keeper"), b.machine.GPUs[0].UUID, gib<<2, 256<<20); err != nil {
			return err
		}
	}
	return nil
}

// passOn makes so many pieces in one keeper, has another hold them, and looks at every byte of what that sends.
func passOn(ctx context.Context, r *result, program, dev string, count int, size int64) (err error) {
	var from, to *device.Keeper
	for name, c := range map[string]**device.Keeper{"first": &from, "second": &to} {
		begin := time.Now()
		if *c, err = device.StartKeeper(ctx, device.KeeperOptions{Path: program}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, (*c).Close()) }()
		if err := (*c).Open([]string{dev}); err != nil {
			return err
		}
		if err := (*c).Ready(ctx); err != nil {
			return fmt.Errorf("%s keeper: %w", name, err)
		}
		r.took("keeper.ready", time.Since(begin).Seconds())
	}
	bytes := int64(count) * size
	pieces := make([]record.GPUPiece, count)
	for i := range pieces {
		pieces[i] = record.GPUPiece{Device: dev, Size: size, Address: uint64(i) * uint64(size)}
	}
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	step := func(name string, do func() error) {
		if err != nil {
			return
		}
		begin := time.Now()
		if err = do(); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
			return
		}
		seconds := time.Since(begin).Seconds()
		r.took("keeper."+name, seconds)
		r.checked("%s: %d MiB in %.4f s, %.1f GB/s", name, bytes>>20, seconds, float64(bytes)/seconds/1e9)
	}
	step("make", func() (err error) { files, err = from.Make(ctx, pieces); return err })
	step("load, of nothing in particular", func() error { return load(ctx, from, pieces, func([]byte, int, int64) {}) })
	step("load", func() error { return load(ctx, from, pieces, pattern) })
	step("hold", func() error { return to.Hold(ctx, pieces, files, nil) })
	step("drain, and discard", func() error { return drain(ctx, to, pieces, func(device.Chunk) error { return nil }) })
	step("drain", func() error { return drain(ctx, to, pieces, asFilled) })
	if err == nil {
		err = peakOf(r, to.PID())
	}
	return err
}

// pattern is what is in a piece from an offset on: each word is of its place alone.
func pattern(b []byte, piece int, offset int64) {
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word(piece, offset+int64(i)))
	}
}

func word(piece int, offset int64) uint64 {
	x := (uint64(piece)<<40 | uint64(offset)) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// asFilled looks at every byte.
func asFilled(c device.Chunk) error {
	if c.Zero > 0 {
		return fmt.Errorf("piece %d is said to be zero at %d", c.Piece, c.Offset)
	}
	for i := 0; i+8 <= len(c.Data); i += 8 {
		if binary.LittleEndian.Uint64(c.Data[i:]) != word(c.Piece, c.Offset+int64(i)) {
			return fmt.Errorf("piece %d is another at %d", c.Piece, c.Offset+int64(i))
		}
	}
	return nil
}

// connected has one side work with one end of a connection, and the other with the other.
func connected(here, there func(*os.File) error) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	var one, two error
	var wait sync.WaitGroup
	wait.Go(func() { one = here(ours) })
	wait.Go(func() { two = there(theirs) })
	wait.Wait()
	return errors.Join(one, two)
}

// load fills all pieces, as the loader does: a slot a worker.
func load(ctx context.Context, c *device.Keeper, pieces []record.GPUPiece, fill func(b []byte, piece int, offset int64)) error {
	send := func(f *os.File) error {
		return device.SendPieces(ctx, f, sizesOf(pieces), func(ctx context.Context, s *device.Sender) error {
			g, ctx := errgroup.WithContext(ctx)
			g.SetLimit(runtime.NumCPU())
			for n, p := range pieces {
				for at := int64(0); at < p.Size; at += device.DefaultRing.SlotBytes {
					g.Go(func() error {
						return s.Put(ctx, n, at, func(b []byte) (int, error) {
							fill(b, n, at)
							return len(b), nil
						})
					})
				}
			}
			return g.Wait()
		})
	}
	return connected(send, func(f *os.File) error { return c.Receive(ctx, f) })
}

// drain takes all pieces, as the checkpoint process does: a slot a worker.
func drain(ctx context.Context, c *device.Keeper, pieces []record.GPUPiece, look func(device.Chunk) error) error {
	receive := func(f *os.File) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(runtime.NumCPU())
		err := device.ReceivePieces(ctx, f, sizesOf(pieces), func(chunk device.Chunk, release func()) error {
			g.Go(func() error {
				defer release()
				return look(chunk)
			})
			return nil
		})
		return errors.Join(g.Wait(), err)
	}
	return connected(receive, func(f *os.File) error { return c.Send(ctx, f) })
}

func sizesOf(pieces []record.GPUPiece) []int64 {
	sizes := make([]int64, len(pieces))
	for i, p := range pieces {
		sizes[i] = p.Size
	}
	return sizes
}

// peakOf writes down the most host memory that a process has had.
func peakOf(r *result, pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			r.checked("the keeper had %s of host memory at most", strings.TrimSpace(value))
		}
	}
	return nil
}
