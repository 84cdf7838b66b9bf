package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// bareDriver is bare.c at work on a process: the driver's calls and nothing else.
type bareDriver struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startDriver(ctx context.Context, programs string, pid int) (*bareDriver, error) {
	d := &bareDriver{command: exec.CommandContext(ctx, filepath.Join(programs, "bare"), strconv.Itoa(pid))}
	d.command.Stderr = os.Stderr
	out, err := d.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if d.in, err = d.command.StdinPipe(); err != nil {
		return nil, err
	}
	d.out = bufio.NewReader(out)
	if err := d.command.Start(); err != nil {
		return nil, fmt.Errorf("start bare: %w", err)
	}
	_, err = d.answer("init")
	return d, err
}

func (d *bareDriver) answer(word string) (seconds float64, err error) {
	line, err := d.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("read bare's answer to %s: %w", word, err)
	}
	var said string
	var code int
	if _, err := fmt.Sscan(line, &said, &code, &seconds); err != nil || said != word {
		return 0, fmt.Errorf("read bare's answer to %s: %q", word, line)
	}
	if code != 0 {
		return 0, fmt.Errorf("%s: the driver answers %d", word, code)
	}
	return seconds, nil
}

// call makes one of the driver's calls, and writes down its time.
func (d *bareDriver) call(r *result, prefix, word string) error {
	line := word + "\n"
	if word == "lock" {
		line = "lock 10000\n"
	}
	if _, err := io.WriteString(d.in, line); err != nil {
		return fmt.Errorf("ask bare for %s: %w", word, err)
	}
	seconds, err := d.answer(word)
	if err == nil {
		r.took(prefix+"."+word, seconds)
	}
	return err
}

func (d *bareDriver) calls(r *result, prefix string, words ...string) error {
	for _, word := range words {
		if err := d.call(r, prefix, word); err != nil {
			return err
		}
	}
	return nil
}

// stop ends bare, which undoes nothing: nothing is left to be undone, or the process is about to be ended.
func (d *bareDriver) stop() {
	_ = d.in.Close()
	_ = d.command.Wait()
}

// measure takes checkpoints of one process in turn by cryo and by hand: the driver's calls, runc's checkpoint, which drives CRIU as it does
// for cryo, and tar. Then it goes the way of all containers. By cryo first: what has not been touched yet is slower.
func (b *bench) measure(ctx context.Context, r *result, c *container, rounds int, live bool) error {
	defer b.clear(ctx, c)
	if err := b.begin(ctx, r, c); err != nil {
		return err
	}
	if live {
		if rounds > 2 {
			if _, err := b.leaveRunning(ctx, r, c, "first"); err != nil {
				return err
			}
		}
		for range rounds {
			if _, err := b.leaveRunning(ctx, r, c, "live"); err != nil {
				return err
			}
			if err := b.byHand(ctx, r, c); err != nil {
				return fmt.Errorf("by hand: %w", err)
			}
		}
	}
	return b.move(ctx, r, c, route{})
}

// byHand takes a checkpoint of the container without cryo, and lets it run on.
func (b *bench) byHand(ctx context.Context, r *result, c *container) error {
	pid, _, err := b.a.Task(ctx, c.id)
	if err != nil {
		return err
	}
	d, err := startDriver(ctx, b.programs, pid)
	if err != nil {
		return err
	}
	defer d.stop()
	images := filepath.Join(b.a.Dir, "by-hand")
	defer os.RemoveAll(images)
	for _, dir := range []string{"images", "work"} {
		if err := os.MkdirAll(filepath.Join(images, dir), 0o700); err != nil {
			return err
		}
	}
	way := b.a.Run(ctx, "true")
	if err := d.calls(r, "hand", "lock", "checkpoint"); err != nil {
		return err
	}
	dump := b.a.Run(ctx, "runc", "--root", "/run/containerd/runc/default", "checkpoint", "--leave-running",
		"--image-path", filepath.Join(images, "images"), "--work-path", filepath.Join(images, "work"), c.id)
	if dump.Err() != nil {
		return fmt.Errorf("%w\n%s", dump.Err(), end(filepath.Join(images, "work/dump.log"), 2000))
	}
	// The way into the host is not runc's.
	r.took("hand.dump", (dump.Elapsed - way.Elapsed).Seconds())
	if err := d.calls(r, "hand", "restore", "unlock"); err != nil {
		return err
	}
	if err := pack(ctx, r, "hand", filepath.Join(images, "images"), filepath.Join(b.a.Dir, "by-hand.tar")); err != nil {
		return err
	}
	_, err = c.check(ctx, b.a, r, "by hand")
	return err
}

// pack makes a tar archive, and removes it.
func pack(ctx context.Context, r *result, prefix, dir, file string) error {
	defer os.Remove(file)
	packed := command(ctx, "tar", "-cf", file, "-C", dir, ".")
	r.took(prefix+".tar", packed.Elapsed.Seconds())
	return packed.Err()
}
