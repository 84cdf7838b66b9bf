package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// write puts the report into a directory, whole or not at all.
func (p *report) write(dir string) error {
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return fmt.Errorf("encode results: %w", err)
	}
	for name, content := range map[string][]byte{"results.json": append(data, '\n'), "results.md": p.markdown()} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", content, 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

// mergeReports makes one report of several runs. Of cases that were run more than once the last counts, unless it was skipped.
func mergeReports(dir string, paths []string) error {
	var all report
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var one report
		if err := json.Unmarshal(data, &one); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
		if all.Began.IsZero() || len(one.Machine.GPUs) > len(all.Machine.GPUs) {
			all.Began, all.Machine = one.Began, one.Machine
		}
		for _, r := range one.Results {
			if r.Run == "" {
				r.Run = one.String()
			}
			i := slices.IndexFunc(all.Results, func(other *result) bool { return other.Case == r.Case })
			switch {
			case i < 0:
				all.add(r)
			case r.Verdict != skipped || all.Results[i].Verdict == skipped:
				all.Results[i] = r
			}
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return all.write(dir)
}

// String says when and where a run was.
func (p *report) String() string {
	m := p.Machine
	where := m.System
	if len(m.GPUs) > 0 {
		where = fmt.Sprintf("%d %s, driver %s", len(m.GPUs), m.GPUs[0].Name, m.Driver)
	}
	return fmt.Sprintf("%s, %s, %d cores, %s", p.Began.Format("2006-01-02"), where, m.Cores, m.Store)
}

// markdown is the table of all cases.
func (p *report) markdown() []byte {
	var b bytes.Buffer
	b.WriteString("# Containers with GPUs\n\nWritten by `integration/gpu/run`. The last column says in which run, of those below. Seconds are medians; frozen is how long a container that is left running stands still; in brackets, by the engine driver. All passed that does not say otherwise.\n\n")
	if p.Machine.Warning != "" {
		fmt.Fprintf(&b, "Warning: %s\n\n", p.Machine.Warning)
	}
	var timeless []string
	var runs []string
	run := func(r *result) string {
		name := cmp.Or(r.Run, p.String())
		if !slices.Contains(runs, name) {
			runs = append(runs, name)
		}
		return fmt.Sprint(slices.Index(runs, name) + 1)
	}
	row(&b, "case", "what", "frozen", "restore", "from the registry", "prewarmed", "run")
	row(&b, "---", "---", "---:", "---:", "---:", "---:", "---:")
	for _, r := range p.Results {
		what := r.About
		if r.Verdict != passed {
			what += "; " + r.Verdict + ": " + first(r.Why)
		}
		cells := r.cells("")
		if len(r.others()) == 0 && strings.Join(cells, "") == "" {
			name := r.Case
			if r.Verdict != passed {
				name += " (" + r.Verdict + ": " + first(r.Why) + ")"
			}
			timeless = append(timeless, name)
			continue
		}
		row(&b, append(append([]string{r.Case, what}, cells...), run(r))...)
		for _, o := range r.others() {
			row(&b, append(append([]string{r.Case, o.name}, r.cells(o.prefix)...), run(r))...)
		}
	}
	b.WriteString("\nRuns:\n\n")
	for i, name := range runs {
		fmt.Fprintf(&b, "%d. %s\n", i+1, name)
	}
	if len(timeless) > 0 {
		fmt.Fprintf(&b, "\nWithout times (`--list` says what they are): %s.\n", strings.Join(timeless, ", "))
	}
	for _, r := range p.Results {
		if r.Conformance != nil {
			r.conforms(&b)
		}
	}
	return b.Bytes()
}

// conforms writes the table of what differs with the library.
func (r *result) conforms(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n%s: %s.\n\n", r.Case, r.Conformance)
	if len(r.Conformance.Differences) == 0 {
		return
	}
	row(b, "call", "without the library", "with it", "reason")
	row(b, "---", "---", "---", "---")
	for _, d := range r.Conformance.Differences {
		row(b, d.Call, d.Without, d.With, cmp.Or(d.Why, "not known"))
	}
}

// other is a way that was measured beside a case's own; its times have names that begin with the prefix.
type other struct{ name, prefix string }

// others are the same calls by hand, and other sizes.
func (r *result) others() (all []other) {
	if len(r.Times["hand.dump"]) > 0 {
		all = append(all, other{"by hand", byHand})
	}
	for name := range r.Times {
		if size, ok := strings.CutSuffix(name, ".freeze"); ok && strings.HasPrefix(size, freezePrefix) {
			all = append(all, other{strings.TrimPrefix(size, freezePrefix) + " GiB", size + "."})
		}
	}
	slices.SortFunc(all, func(a, b other) int {
		return cmp.Or(cmp.Compare(len(a.name), len(b.name)), cmp.Compare(a.name, b.name))
	})
	return all
}

const byHand = "hand."

// cells are the times in the table's columns, of names that begin with a prefix. Sizes have theirs without "live.".
func (r *result) cells(prefix string) (all []string) {
	live := prefix + "live.freeze"
	switch {
	case prefix == byHand: // it is not ended, and goes on by the driver's calls
		return []string{cell(r.Times, "hand.lock+hand.checkpoint+hand.dump+hand.restore+hand.unlock"), "", "", ""}
	case strings.HasPrefix(prefix, freezePrefix):
		live = prefix + "freeze"
	}
	for _, name := range []string{live, prefix + "restore", prefix + "registry.restore", prefix + "prewarmed.restore"} {
		text := cell(r.Times, name)
		if driver := cell(r.Times, "driver."+name); driver != "" {
			text = strings.TrimSpace(text + " (" + driver + ")")
		}
		all = append(all, text)
	}
	return all
}

// cell is the sum of medians of names joined by "+"; empty if one has none.
func cell(times map[string][]float64, names string) string {
	total := 0.0
	for name := range strings.SplitSeq(names, "+") {
		seconds, ok := median(times[name])
		if !ok {
			return ""
		}
		total += seconds
	}
	return fmt.Sprintf("%.2f", total)
}

// row writes a row of a table.
func row(b *bytes.Buffer, cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "\n", " ")
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}
