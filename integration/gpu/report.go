package main

import (
	"bytes"
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

func (p *report) markdown() []byte {
	var b bytes.Buffer
	p.head(&b)
	p.cases(&b)
	p.times(&b)
	p.moves(&b)
	p.engines(&b)
	p.freezes(&b)
	p.seconds(&b)
	p.cycles(&b)
	p.costs(&b)
	return b.Bytes()
}

// cases is the table of all cases, and behind it that of the runs they are of, where these are several.
func (p *report) cases(b *bytes.Buffer) {
	var runs []string
	row(b, "case", "what", "result", "seconds", "run")
	row(b, "---", "---", "---", "---:", "---:")
	for _, r := range p.Results {
		verdict := r.Verdict
		if r.Why != "" {
			verdict += ": " + first(r.Why)
		}
		run := ""
		if r.Run != "" {
			i := slices.Index(runs, r.Run)
			if i < 0 {
				i = len(runs)
				runs = append(runs, r.Run)
			}
			run = fmt.Sprint(i + 1)
		}
		row(b, r.Case, r.About, verdict, fmt.Sprintf("%.0f", r.Seconds), run)
	}
	if len(runs) == 0 {
		return
	}
	fmt.Fprintln(b)
	row(b, "run", "when and where")
	row(b, "---:", "---")
	for i, run := range runs {
		row(b, fmt.Sprint(i+1), run)
	}
}

func (p *report) head(b *bytes.Buffer) {
	m := p.Machine
	fmt.Fprintf(b, "# Containers with GPUs, %s\n\nWritten by `integration/gpu/run`; `results.json` has all rounds, what was checked, and what programs said.\n\n", p.Began.Format("2006-01-02"))
	row(b, "what", "which")
	row(b, "---", "---")
	for i, g := range m.GPUs {
		row(b, fmt.Sprintf("GPU %d", i), fmt.Sprintf("%s, %d GiB, compute capability %s", g.Name, g.Memory>>30, g.Architecture))
	}
	row(b, "driver", fmt.Sprintf("%s, CUDA %d.%d", m.Driver, m.CUDA/1000, m.CUDA%1000/10))
	row(b, "system", fmt.Sprintf("%s, Linux %s, %d cores, %d GiB", m.System, m.Kernel, m.Cores, m.Memory>>30))
	row(b, "images, snapshots and registry on", m.Store)
	row(b, "CDI specification of nvidia-ctk used", m.CDI)
	if m.Warning != "" {
		row(b, "warning", m.Warning)
	}
	for _, refused := range m.CDIRefused {
		row(b, "CDI specification refused", ends(refused))
	}
	if len(m.Touched) > 0 {
		row(b, "host memory, touched once ahead of the first case that needs as much", strings.Join(m.Touched, ", "))
	}
	var names []string
	for name := range m.Versions {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		row(b, name, m.Versions[name])
	}
	fmt.Fprintln(b)
}

// ends gives what comes before a text's first colon and after its last; results.json has all of it.
func ends(text string) string {
	from, to := strings.Index(text, ": "), strings.LastIndex(text, ": ")
	if from == to {
		return text
	}
	return text[:from] + ": …" + strings.TrimSuffix(text[to:], `"`)
}

// row writes a row of a table.
func row(b *bytes.Buffer, cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "\n", " ")
	}
	fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
}
