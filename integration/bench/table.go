package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// text is the report for people: tables in Markdown, aligned so that they can be read as they are.
func (p *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# cryo beside stock containerd and CRIU, %s\n\n", p.Began.Format("2006-01-02 15:04 MST"))
	b.WriteString(p.Machine.text())
	for _, subject := range p.subjects() {
		fmt.Fprintf(&b, "\n## %s\n\n", subject)
		rows := [][]string{{"what", "cryo", "beside it", "ratio", "aim", "on this run"}}
		for _, f := range p.Figures {
			if f.Subject == subject {
				rows = append(rows, f.row())
			}
		}
		align(&b, rows)
	}
	met, missed, other := p.count()
	fmt.Fprintf(&b, "\n%d aims met, %d missed, %d figures not run, in %.0f s. Medians, with the least and the most of the rounds; "+
		"integration/bench/README.md says how to read them.\n", met, missed, other, p.Seconds)
	for _, warning := range p.Warnings {
		fmt.Fprintf(&b, "Warning: %s\n", warning)
	}
	return b.String()
}

// subjects are in the order in which they were measured.
func (p *report) subjects() []string {
	var found []string
	seen := map[string]bool{}
	for _, f := range p.Figures {
		if !seen[f.Subject] {
			seen[f.Subject] = true
			found = append(found, f.Subject)
		}
	}
	return found
}

func (p *report) count() (met, missed, notRun int) {
	for _, f := range p.Figures {
		switch {
		case f.NotRun != "":
			notRun++
		case f.Met != nil && *f.Met:
			met++
		case f.Met != nil:
			missed++
		}
	}
	return met, missed, notRun
}

func (f *figure) row() []string {
	beside := f.BesideWhat
	if f.BesideNotRun != "" {
		beside += ": not run: " + short(f.BesideNotRun)
	} else if text := rounds(f.Beside, f.Unit); text != "" {
		beside += ": " + text
	}
	ratio := ""
	if f.Ratio > 0 {
		ratio = fmt.Sprintf("%.3g", f.Ratio)
	}
	verdict := f.verdict()
	if f.Note != "" {
		verdict += "; " + f.Note
	}
	return []string{f.Case + ": " + f.What, rounds(f.Cryo, f.Unit), beside, ratio, f.Aim.text(f.Unit), verdict}
}

// short is the beginning of a long reason; bench.json has all of it.
func short(reason string) string {
	const most = 120
	if letters := []rune(reason); len(letters) > most {
		return string(letters[:most]) + "..."
	}
	return reason
}

// align writes a table whose columns are as wide as their widest cell; the last is left as it is.
func align(b *strings.Builder, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			row[i] = strings.ReplaceAll(strings.ReplaceAll(cell, "|", `\|`), "\n", " ")
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for n, row := range rows {
		for i, cell := range row {
			if i == len(row)-1 {
				fmt.Fprintf(b, "| %s |\n", cell)
				continue
			}
			fmt.Fprintf(b, "| %s%s ", cell, strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)))
		}
		if n == 0 {
			for i := range row {
				fmt.Fprintf(b, "| %s ", strings.Repeat("-", max(3, widths[i]*min(1, len(row)-1-i))))
			}
			b.WriteString("|\n")
		}
	}
}
