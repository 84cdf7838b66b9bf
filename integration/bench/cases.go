package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// benchCase is something to be measured, once a run or for every subject.
type benchCase struct {
	name, about string
	once        func(*bench, context.Context) error
	each        func(*bench, context.Context, subject) error
	// asked has it measured only where --cases names it.
	asked bool
	// memory and disk are how many times the subject's memory is needed of each.
	memory, disk int
}

var cases = []benchCase{
	{name: "start", about: "ctr run --detach until it returns, beside the stock shim's", once: (*bench).start},
	{name: "idle", about: "proportional set size of the shim and its children, 5 s after the start, beside the stock shim's", once: (*bench).idle},
	{name: "snapshot", about: "longest gap of a thread that ticks a thousand times a second, and checkpoint --leave-running with syncfs; beside criu dump into a tmpfs, ctr c checkpoint and podman container checkpoint --export", each: (*bench).snapshot, memory: 2, disk: 3},
	{name: "push", about: "checkpoint with a push into an empty registry here, beside the slower of sha256 on all cores and one upload of one blob", each: (*bench).push, memory: 1, disk: 3},
	{name: "lines", about: "restores from a registry on slow lines: until the process has answered, and until all is here", once: (*bench).lines},
	{name: "group", about: "how long members of groups of 2, 8 and 32 stand still in checkpoint --group, beside one of them in a checkpoint of its own, and beside all in as many checkpoints at the same time", once: (*bench).group, asked: true},
	{name: "restore", about: "until the process has answered, and until the kernel has all its pages that are not zero; beside criu restore, ctr c restore and podman container restore --import", each: (*bench).restore, memory: 1, disk: 7},
	{name: "second", about: "bytes stored and sent after 1 % of memory has changed, beside those of the first snapshot", each: (*bench).second, memory: 1, disk: 3},
	{name: "pool", about: "first answer of a container that is taken out of a pool, beside an ordinary restore and a cold start; the shim's part; what a paused container takes", each: (*bench).pool, asked: true, memory: 3, disk: 2},
	{name: "clones", about: "first answers of eight restores of one snapshot at once, beside one alone and beside eight ctr run of the same program at once", each: (*bench).clones, asked: true, memory: 17, disk: 2},
	{name: "other", about: "checkpoints and pushes of which nothing is there yet, and restores, also of what was prewarmed, beside those of another cryo, whose programs are in the directory of --other", each: (*bench).other, memory: 4, disk: 7},
}

func checkCases(names []string) error {
	for _, name := range names {
		if !slices.ContainsFunc(cases, func(c benchCase) bool { return c.name == name }) {
			return fmt.Errorf("no case %s; --list lists them", name)
		}
	}
	return nil
}

// run measures, and writes the figures there are after every case, so that nothing is lost with the machine.
func run(ctx context.Context, s settings) (err error) {
	p := &report{Began: time.Now().UTC().Truncate(time.Second)}
	b, err := open(ctx, s, p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	finish := func() error {
		p.Seconds = time.Since(p.Began).Seconds()
		return p.write(s.json)
	}
	attempt := func(name, subject string, f func() error) error {
		fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format("15:04:05"), name, subject)
		if err := f(); err != nil {
			p.add(&figure{Case: name, Subject: subject, What: "the rest of it", NotRun: failure + err.Error()})
		}
		if err := b.tidy(ctx); err != nil {
			return err
		}
		return errors.Join(finish(), ctx.Err())
	}
	chosen := func(c benchCase) bool {
		return len(s.cases) == 0 && !c.asked && (c.name != "other" || s.otherPrograms != "") || slices.Contains(s.cases, c.name)
	}
	for _, c := range cases {
		if c.once != nil && chosen(c) {
			subject := "Shims"
			switch c.name {
			case "lines":
				subject = "Lines"
			case "group":
				subject = "Groups"
			}
			if err := attempt(c.name, subject, func() error { return c.once(b, ctx) }); err != nil {
				return err
			}
		}
	}
	for _, sub := range s.subjects {
		b.peaks.forget()
		for _, c := range cases {
			if c.each == nil || !chosen(c) {
				continue
			}
			if why := b.lacks(c, sub); why != "" {
				p.add(&figure{Case: c.name, Subject: sub.name(), What: c.about, NotRun: why})
				continue
			}
			if err := attempt(c.name, sub.name(), func() error { return c.each(b, ctx, sub) }); err != nil {
				return err
			}
		}
		p.add(b.peaks.figures(sub)...)
	}
	if err := finish(); err != nil {
		return err
	}
	fmt.Print(p.text())
	return p.failed()
}

// failure begins the reasons for which figures should not be missing.
const failure = "failed: "

// failed is an error where cryo, or the bench itself, has failed at anything.
func (p *report) failed() error {
	failed := 0
	for _, f := range p.Figures {
		if strings.HasPrefix(f.NotRun, failure) {
			failed++
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d figures are missing because something failed", failed)
	}
	return nil
}

// lacks says why a case cannot be run on a subject; "" if it can.
func (b *bench) lacks(c benchCase, s subject) string {
	if b.late() {
		return "no time was left (--budget)"
	}
	const spare = 1 << 30
	need := int64(c.memory)*s.bytes() + spare
	if have := available(); have < need {
		return fmt.Sprintf("it needs %s of memory, %s are available", quantity(float64(need), "B"), quantity(float64(have), "B"))
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(b.lab.Dir, &fs); err != nil {
		return err.Error()
	}
	need = int64(c.disk)*s.bytes() + spare
	if have := int64(fs.Bavail) * fs.Bsize; have < need {
		return fmt.Sprintf("it needs %s of disk, %s are free", quantity(float64(need), "B"), quantity(float64(have), "B"))
	}
	return ""
}

// late tells whether nothing shall be begun any more.
func (b *bench) late() bool { return time.Since(b.report.Began) > b.budget }
