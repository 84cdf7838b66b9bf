package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/integration/hosttest"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/restore"
)

func TestTimes(t *testing.T) {
	for s, want := range map[float64]string{0.0371: "37 ms", 1.25: "1.2 s", 3600: "1h0m0s"} {
		if got := seconds(s); got != want {
			t.Errorf("seconds(%v) = %q, want %q", s, got, want)
		}
	}
	for d, want := range map[time.Duration]string{5 * time.Second: "5 seconds ago", 90 * time.Second: "About a minute ago", 5 * time.Hour: "5 hours ago", 72 * time.Hour: "3 days ago"} {
		if got := age(time.Now().Add(-d)); got != want {
			t.Errorf("age(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	var p progress
	now := time.Now()
	p.draw(&out, "push", 0, 100<<20, now)
	p.draw(&out, "push", 1, 100<<20, now.Add(time.Millisecond)) // too soon
	p.draw(&out, "push", 50<<20, 100<<20, now.Add(time.Second))
	if got := out.String(); strings.Count(got, "\r") != 2 || !strings.Contains(got, "push  50 %  50.0 MiB of 100.0 MiB  50.0 MiB/s") {
		t.Errorf("drawn %q", got)
	}
	p.stop()
	if !strings.HasSuffix(out.String(), "\r\033[K") {
		t.Errorf("the line stays: %q", out.String())
	}
	n := out.Len()
	p.draw(&out, "push", 100<<20, 100<<20, now.Add(time.Minute))
	if out.Len() != n {
		t.Error("drawn after stop")
	}
	if line("pull", 10, 0, 10, 0) != "pull 10 B" {
		t.Errorf("without a total: %q", line("pull", 10, 0, 10, 0))
	}
	if (&app{stderr: &out}).report() != nil {
		t.Error("progress without a terminal")
	}
}

func TestInspectShowsGPUs(t *testing.T) {
	var out strings.Builder
	a := &app{stdout: &out}
	g := hosttest.Saved(2, "nvidia.com/gpu=0", "nvidia.com/gpu=1")
	g.Processes[1].Devices = append(g.Processes[1].Devices, g.Devices[0].UUID)
	g.Forced = []string{"gpu-peer"}
	i := inspected{Reference: "llm:ready", Config: image.Config{GPU: g, Processes: []image.Process{{PID: 1, Command: "python"}, {PID: 2, Command: "python"}, {PID: 3, Command: "sh"}}}}
	i.Asks = trust.Review(hosttest.PlainSpec(), i.Config.GPU.CDI, trust.Policy{})
	if err := a.printInspected(i, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"NVIDIA driver 580.159.04 (branch 580), as many GPUs (2), GPU 0 of architecture 9.0 with 1.0 GiB free", "CDI, nvidia.com/gpu=0, nvidia.com/gpu=1", "1.0 GiB on 0\n", "1.0 GiB on 1, 0\n",
		"the restore may fail", "GPU locked in 0 ms, saved in 0 ms, dump", "NVIDIA H200  9.0", g.Devices[1].UUID, "--device nvidia.com/gpu=0  the CDI device nvidia.com/gpu=0",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	out.Reset()
	i.Config.GPU = nil
	if err := a.printInspected(i, false); err != nil || strings.Contains(strings.ReplaceAll(out.String(), "gpu=", ""), "GPU") {
		t.Errorf("without: %v\n%s", err, &out)
	}
}

func TestInspectShowsHandOver(t *testing.T) {
	var out strings.Builder
	record := hosttest.Handed()
	c := image.Config{GPU: &record.GPU, Processes: []image.Process{{PID: 7, Command: "python"}, {PID: 9, Command: "sh"}}, Memory: image.Memory{Total: 9 << 20, Device: 8 << 20, Zero: 1 << 20}}
	c.GPU.Seconds.Devices = 2
	if err := (&app{stdout: &out}).printInspected(inspected{Reference: "llm:ready", Config: c}, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"9.0 MiB, of which 8.0 MiB of GPUs and 1.0 MiB zero", "keeper, 8.0 MiB handed over in 4 pieces", "1.0 sha256:aaaa",
		"(8.0 MiB handed over)", "9 (sh) went by the driver: it was forked", "8.0 MiB of it handed over in 2.0 s",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
}

func TestCompletionOfGPUs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, fmt.Appendf(nil, "[gpu]\ncdi = [%q]\n", hosttest.CDI(t, "two").GPU.CDI[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"restore r --device ": "nvidia.com/gpu=1", "restore r --force ": "xsave-size", "checkpoint c r --force ": "gpu-several",
	} {
		_, out, _ := cryo(t, append([]string{"--config", path, "__complete"}, append(strings.Fields(args), "")...)...)
		if !strings.Contains(out, want+"\n") || !strings.Contains(out, ":4") || strings.Contains(out, "gpu-driver\n") {
			t.Errorf("%s: %q", args, out)
		}
	}
}

// TestForgedText prints text of a snapshot that would look like more than one line, or other than it is.
func TestForgedText(t *testing.T) {
	const forged = "web\n\tok\u202Etxt.exe\u2028more\x1b[2J"
	const want = "web??ok?txt.exe?more?[2J"
	var out, errs bytes.Buffer
	a := &app{stdout: &out, stderr: &errs}
	if err := a.table([]string{"NAME", "STATE"}, []string{forged, "x"}); err != nil {
		t.Fatal(err)
	}
	a.line("restored %s", forged)
	a.line("of %v", state(forged))
	a.warn("%s", forged)
	report(&errs, trust.Refuse([]trust.Request{{Grant: trust.Mounts, What: forged}}))
	for text, lines := range map[string]int{out.String(): 4, errs.String(): 4} {
		if strings.Contains(text, "\u202e") || strings.Count(text, want) == 0 || strings.Count(text, "\n") > lines {
			t.Errorf("it prints %q", text)
		}
	}
}

// state is a text that is not a string.
type state string

// TestForgedErrors prints errors and hints with lines that a snapshot may have made: none looks like a line of ours.
func TestForgedErrors(t *testing.T) {
	const forged = "web\ncryo: fine\nhint: run\tevil\u202E\nwarning: \x1b[2Jnone\n"
	err := errors.Join(fmt.Errorf("open %s: %w", forged, errdefs.ErrNotFound), errors.New("and another"))
	for name, text := range map[string]string{
		"error":   printed(func(_ *app, w *bytes.Buffer) { report(w, err) }),
		"hint":    printed(func(_ *app, w *bytes.Buffer) { report(w, host.Misfit(host.FitFinding{Hint: forged})) }),
		"warning": printed(func(a *app, _ *bytes.Buffer) { a.warn("remove %v", err) }),
		"line":    printed(func(a *app, _ *bytes.Buffer) { a.line("%12s: %s", "x", err) }),
		"remote": printed(func(_ *app, w *bytes.Buffer) {
			report(w, failure.Passed(errors.New("restore c: "+trust.Lines(forged))))
		}),
	} {
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		for i, line := range lines {
			if i > 0 && !strings.HasPrefix(line, "  ") && !(name == "hint" && line == "hint: web") || strings.ContainsAny(line, "\t\u202e\x1b") {
				t.Errorf("%s: line %d is %q", name, i, line)
			}
		}
		if len(lines) < 4 {
			t.Errorf("%s: parts of the text are missing: %q", name, text)
		}
	}
}

// printed is what do prints, on either stream.
func printed(do func(*app, *bytes.Buffer)) string {
	var out bytes.Buffer
	do(&app{stdout: &out, stderr: &out}, &out)
	return out.String()
}

// TestFormat prints fields of a document by a template: of a list one line for each element, of one that is not there nothing, and refuses wrong ones.
func TestFormat(t *testing.T) {
	for _, test := range []struct {
		format string
		v      any
		want   string
	}{
		{"{{.reference}} {{.size}}", []restore.Tagged{{Reference: "a", Size: 12345678901234567}, {Reference: "b"}}, "a 12345678901234567\nb 0\n"},
		{"{{.error}}.", restore.Tagged{}, ".\n"},
		{"{{.digest}}", []restore.Tagged{}, ""},
		{"{{.reference}}", restore.Tagged{Reference: "a\nb"}, "a?b\n"},
		{"{{index .reference 7}}", restore.Tagged{}, "usage"},
		{"{{.reference", restore.Tagged{}, "usage"},
	} {
		var out bytes.Buffer
		a := &app{stdout: &out}
		cmd := &cobra.Command{}
		a.formatFlag(cmd)
		err := cmd.Flags().Set("format", test.format)
		if err == nil {
			err = a.printJSON(test.v)
		}
		if (err != nil) != (test.want == "usage") || err == nil && out.String() != test.want {
			t.Errorf("%s prints %q, %v; want %q", test.format, out.String(), err, test.want)
		}
	}
}

// TestPrintDone: a full disk behind standard output is a warning, in each form of the output, and no error of the checkpoint or restore.
func TestPrintDone(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for name, a := range map[string]*app{"text": {}, "json": {json: true}, "format": {format: template.Must(template.New("").Parse("{{.a}}"))}} {
		t.Run(name, func(t *testing.T) {
			var warned, out bytes.Buffer
			a.stdout, a.stderr = full, &warned
			text := func() error { a.line("x"); return nil }
			a.printDone(map[string]string{"a": "x"}, text)
			if got := warned.String(); !strings.HasPrefix(got, "warning: the result could not be printed: ") || !strings.Contains(got, "no space left") {
				t.Errorf("standard error has %q", got)
			}
			warned.Reset()
			a.stdout = &out
			a.printDone(map[string]string{"a": "x"}, text)
			if !strings.Contains(out.String(), "x") || warned.Len() > 0 {
				t.Errorf("printed %q, warned %q", &out, &warned)
			}
		})
	}
}
