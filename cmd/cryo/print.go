package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/trust"
	"github.com/cryo-project/cryo/shim/daemon"
)

// report prints an error and what to do about it, as every subcommand does.
func report(w io.Writer, err error) {
	fmt.Fprintf(w, "cryo: %s\n", trust.Lines(err.Error()))
	if hint := hintOf(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", trust.Lines(hint))
	}
}

// hintOf returns what to do about an error; empty if nothing is known.
func hintOf(err error) string {
	hint := failure.Hint(err)
	if hint == "" && daemon.Gone(err) {
		hint = "see that containerd runs, and try again"
	}
	return hint
}

// warn prints a warning on standard error.
func (a *app) warn(text string, args ...any) {
	a.progress.clear()
	fmt.Fprintf(a.stderr, "warning: %s\n", format(text, args...))
}

// say tells what is going on where there is progress to be seen, on a terminal.
func (a *app) say(text string, args ...any) {
	if a.report() == nil {
		return
	}
	a.progress.clear()
	fmt.Fprintln(a.stderr, format(text, args...))
}

// format fills in a format, in which newlines and tabs are ours. What is filled in cannot forge a line: see [filledIn].
func format(text string, args ...any) string {
	for i, a := range args {
		args[i] = filledIn{a}
	}
	return fmt.Sprintf(text, args...)
}

// filledIn wraps an argument of a format. It prints an error with [trust.Lines], which indents further lines, and anything else on one line.
type filledIn struct{ v any }

// Format implements [fmt.Formatter].
func (f filledIn) Format(s fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(s, verb), f.v)
	if _, is := f.v.(error); is {
		text = trust.Lines(text)
	} else {
		text = trust.OneLine(text)
	}
	_, _ = io.WriteString(s, text) // the buffer of Sprintf
}

// formatFlag adds the flag --format to a command that prints JSON.
func (a *app) formatFlag(cmd *cobra.Command) {
	cmd.Flags().Func("format", "print fields of --json by a Go template, such as {{.digest}}, one line for each element of a list", func(text string) (err error) {
		a.format, err = template.New("--format").Parse(text)
		return err
	})
}

// print prints a result: v as a document for programs, or what text prints for people.
func (a *app) print(v any, text func() error) error {
	a.progress.stop()
	if a.json || a.format != nil {
		return a.printJSON(v)
	}
	return text()
}

// printDone prints the result of a checkpoint or restore as print does. Where that fails it warns: what was done is done, and the exit code is about the container.
func (a *app) printDone(v any, text func() error) {
	out := &printing{Writer: a.stdout}
	a.stdout = out
	err := a.print(v, text)
	a.stdout = out.Writer
	if err = cmp.Or(err, out.err); err != nil {
		a.warn("the result could not be printed: %v", err)
	}
}

// printing keeps the first error of a writer.
type printing struct {
	io.Writer
	err error
}

// Write implements [io.Writer].
func (o *printing) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	o.err = cmp.Or(o.err, err)
	return n, err
}

// printFormat prints v by the template of --format: one line, or one for each element where v is a list.
func (a *app) printFormat(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber() // as they are written, where large
	var document any
	if err := d.Decode(&document); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	list, is := document.([]any)
	if !is {
		list = []any{document}
	}
	for _, element := range list {
		var line strings.Builder
		if err := a.format.Execute(&line, element); err != nil {
			return misused("cryo", "--format: %v", err)
		}
		a.line("%s", strings.ReplaceAll(line.String(), "<no value>", "")) // what has nothing to say is left out of the document
	}
	return nil
}

// printJSON prints v, indented, as the one JSON document of the output, or what --format asks for of it.
func (a *app) printJSON(v any) error {
	if a.format != nil {
		return a.printFormat(v)
	}
	a.printed = true
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// table prints rows of cells in columns, aligned.
func (a *app) table(rows ...[]string) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = trust.OneLine(clip(cell))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// clip shortens a cell: all of its column are as wide as the widest.
func clip(cell string) string {
	const most = 4 << 10
	if len(cell) <= most {
		return cell
	}
	return cell[:most] + "..."
}

// line prints one line of a result for people.
func (a *app) line(text string, args ...any) {
	fmt.Fprintln(a.stdout, format(text, args...))
}

// seconds returns a duration as people read it.
func seconds(s float64) string {
	switch {
	case s < 1:
		return fmt.Sprintf("%.0f ms", s*1000)
	case s < 100:
		return fmt.Sprintf("%.1f s", s)
	}
	return time.Duration(s * float64(time.Second)).Round(time.Second).String()
}

// age returns the time since t as people read it.
func age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(time.Since(t)) + " ago"
}
