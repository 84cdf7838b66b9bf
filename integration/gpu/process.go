package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/cryo-project/cryo/integration/lab"
)

// process takes a program that is in no container there and back by hand: the driver's calls, criu and tar. It is the
// least that a checkpoint and a restore can cost with this driver and this CRIU.
func (b *bench) process(ctx context.Context, r *result, gib int, pattern string) error {
	dir := filepath.Join(b.lab.Dir, "bare")
	defer os.RemoveAll(dir)
	images := filepath.Join(dir, "images")
	for _, d := range []string{"images", "plugins"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return err
	}
	defer output.Close()
	app := exec.Command(filepath.Join(b.programs, "app"), "--gib", strconv.Itoa(gib), "--pattern", pattern)
	app.Dir, app.Env = "/", append(os.Environ(), "WORK="+dir)
	app.Stdout, app.Stderr = output, output
	app.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := app.Start(); err != nil {
		return err
	}
	pid := app.Process.Pid
	ended := make(chan struct{})
	go func() {
		_ = app.Wait() // by CRIU
		close(ended)
	}()
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }() // the restored one has the same number
	if _, err := expect(ctx, dir, 0); err != nil {
		return fmt.Errorf("%w: %s", err, end(output.Name(), 2000))
	}
	d, err := startDriver(ctx, b.programs, pid)
	if err != nil {
		return err
	}
	defer d.stop()
	if err := d.calls(r, "bare", "lock", "checkpoint"); err != nil {
		return err
	}
	criu := b.machine.criu
	common := []string{"--images-dir", images, "--shell-job", "--libdir", filepath.Join(dir, "plugins"), "-v1"}
	dump := command(ctx, criu, append([]string{"dump", "--tree", strconv.Itoa(pid), "--log-file", "dump.log"}, common...)...)
	if dump.Err() != nil {
		return fmt.Errorf("%w\n%s", dump.Err(), end(filepath.Join(images, "dump.log"), 2000))
	}
	r.took("bare.dump", dump.Elapsed.Seconds())
	<-ended
	archive := filepath.Join(dir, "images.tar")
	packed := command(ctx, "tar", "-cf", archive, "-C", images, ".")
	if packed.Err() != nil {
		return packed.Err()
	}
	r.took("bare.tar", packed.Elapsed.Seconds())
	if err := os.RemoveAll(images); err != nil {
		return err
	}
	if err := os.Mkdir(images, 0o700); err != nil {
		return err
	}
	unpacked := command(ctx, "tar", "-xf", archive, "-C", images)
	if unpacked.Err() != nil {
		return unpacked.Err()
	}
	r.took("bare.untar", unpacked.Elapsed.Seconds())
	if err := os.Remove(archive); err != nil {
		return err
	}
	return b.back(ctx, r, d, dir, append([]string{"restore", "--restore-detached", "--log-file", "restore.log"}, common...))
}

// back restores the process and asks it.
func (b *bench) back(ctx context.Context, r *result, d *bareDriver, dir string, args []string) error {
	c := exec.CommandContext(ctx, b.machine.criu, args...)
	// The restored process keeps what CRIU has inherited; a pipe would be waited for.
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	c.Stdin, c.Stdout, c.Stderr = null, null, null
	restore := lab.Finish(c)
	if restore.Err() != nil {
		return fmt.Errorf("%w\n%s", restore.Err(), end(filepath.Join(dir, "images/restore.log"), 2000))
	}
	r.took("bare.criu restore", restore.Elapsed.Seconds())
	if err := d.calls(r, "bare", "restore", "unlock"); err != nil {
		return err
	}
	const question = 1
	if err := os.WriteFile(filepath.Join(dir, "ask-0"), fmt.Appendf(nil, "%d check\n", question), 0o600); err != nil {
		return err
	}
	a, err := expect(ctx, dir, question)
	if err != nil {
		return err
	}
	if !a.OK {
		return fmt.Errorf("restored by hand: damaged: %s", a.text)
	}
	r.checked("restored by hand: %s", short(a.text))
	return nil
}

// expect waits for an answer in a directory of this machine.
func expect(ctx context.Context, dir string, seq int64) (a answer, err error) {
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if a, err = read(dir, 0); err == nil && a.Seq == seq {
			return a, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return a, fmt.Errorf("the process does not answer: %w", err)
		}
	}
}
