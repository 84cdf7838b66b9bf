package main

import (
	"cmp"
	"fmt"
	"html"
	"os"
	"strings"
)

// bar is one line of a chart.
type bar struct {
	name    string
	seconds float64
	ours    bool
}

// chart has the same thing by cryo and by others.
type chart struct {
	title string
	bars  []bar
}

// charts are what a picture shows of a subject: how long a container stands still, and how soon a restored one answers. What was not run is left out.
func (p *report) charts(subject string) []chart {
	freeze := chart{title: "A container stands still for its snapshot"}
	first := chart{title: "A restored container answers after"}
	for _, f := range p.Figures {
		if f.Subject != subject {
			continue
		}
		if with, ok := strings.CutPrefix(f.BesideWhat, besidePause); ok && f.Case == "freeze" {
			freeze.add("cryo checkpoint", f.Cryo, true)
			freeze.add(with, f.Beside, false)
		}
		if what, ok := strings.CutSuffix(f.What, ", warm: first answer"); ok && f.Case == "restore" {
			first.add(what, f.Cryo, true)
			first.add(f.BesideWhat, f.Beside, false)
		}
	}
	return []chart{freeze, first}
}

// add adds the median of some rounds, unless there are none or there is one of the name: a figure may be beside several others.
func (c *chart) add(name string, rounds []float64, ours bool) {
	s, ok := spreadOf(rounds)
	for _, b := range c.bars {
		ok = ok && b.name != name
	}
	if ok {
		c.bars = append(c.bars, bar{name, s.median, ours})
	}
}

// Sizes of a picture, in pixels.
const (
	pictureWidth, chartTop, barHeight, barGap = 980, 34, 20, 8
	barsFrom, barsTo                          = 470, 900
)

// picture is a drawing of all subjects' charts as SVG, which follows the reader's light or dark colours. A report without figures for it is an error.
func (p *report) picture() (string, error) {
	var body strings.Builder
	y := 24
	for _, subject := range p.subjects() {
		drawn := false
		for _, c := range p.charts(subject) {
			if len(c.bars) < 2 {
				continue
			}
			if !drawn {
				fmt.Fprintf(&body, `<text x="0" y="%d" class="subject">Memory of %s</text>`+"\n", y, html.EscapeString(subject))
				y, drawn = y+10, true
			}
			y = c.draw(&body, y)
		}
		if drawn {
			y += 24
		}
	}
	if body.Len() == 0 {
		return "", fmt.Errorf("the report has no figures of freezes and restores for a picture")
	}
	kernel, _, _ := strings.Cut(p.Machine.Kernel, "-")
	load, _, _ := strings.Cut(strings.Join(p.Machine.Load, ""), " ") // of the minute before
	fmt.Fprintf(&body, `<text x="0" y="%d" class="note">%s</text>`+"\n", y, html.EscapeString(fmt.Sprintf("Medians, files in the page cache. %d cores, %.0f GiB, Linux %s, CRIU %s, containerd %s; %s; load at the start: %s",
		p.Machine.Cores, float64(p.Machine.Memory)/(1<<30), kernel, p.Machine.CRIU, p.Machine.Containerd, p.Began.Format("2006-01-02"), load)))
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img">
<title>cryo beside others</title>
<style>
text { font: 13px sans-serif; fill: #24292f }
.subject { font-weight: bold; font-size: 15px } .title { font-weight: bold } .note { font-size: 11px; fill: #6e7781 }
.other { fill: #8c959f } .ours { fill: #0969da }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .note { fill: #8b949e } .other { fill: #6e7681 } .ours { fill: #58a6ff } }
</style>
%s</svg>
`, pictureWidth, y+12, body.String()), nil
}

// draw draws the chart below y, and returns where it ends.
func (c chart) draw(to *strings.Builder, y int) int {
	longest := 0.0
	for _, b := range c.bars {
		longest = max(longest, b.seconds)
	}
	fmt.Fprintf(to, `<text x="0" y="%d" class="title">%s</text>`+"\n", y+chartTop-10, html.EscapeString(c.title))
	y += chartTop
	for _, b := range c.bars {
		class, width := "other", max(1, b.seconds/cmp.Or(longest, 1)*(barsTo-barsFrom))
		if b.ours {
			class = "ours"
		}
		fmt.Fprintf(to, `<text x="%d" y="%d" text-anchor="end">%s</text><rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/><text x="%.1f" y="%d">%s</text>`+"\n",
			barsFrom-8, y+barHeight-5, html.EscapeString(b.name), class, barsFrom, y, width, barHeight, barsFrom+width+6, y+barHeight-5, quantity(b.seconds, "s"))
		y += barHeight + barGap
	}
	return y
}

// draw writes the picture into a file.
func (p *report) draw(path string) error {
	text, err := p.picture()
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
