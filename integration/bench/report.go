package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// report is everything of a run.
type report struct {
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"` // that it took
	Machine machine   `json:"machine"`
	Figures []*figure `json:"figures"`
	// Warnings are what else went wrong, or makes the figures doubtful.
	Warnings []string `json:"warnings,omitempty"`
}

func (p *report) add(figures ...*figure) {
	for _, f := range figures {
		f.judge()
		p.Figures = append(p.Figures, f)
	}
}

func (p *report) warn(format string, args ...any) {
	p.Warnings = append(p.Warnings, fmt.Sprintf(format, args...))
}

// write puts the report into a file, whole or not at all.
func (p *report) write(path string) error {
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return fmt.Errorf("encode figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// merge makes one report of several runs of parts, on one machine. Of a figure that several have, the last counts, unless it was not run.
func merge(paths []string) (*report, error) {
	var all *report
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		var one report
		if err := json.Unmarshal(data, &one); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if all == nil {
			all = &one
			continue
		}
		if !one.Machine.same(all.Machine) {
			all.warn("%s is of another machine or of other versions", path)
		}
		all.Seconds += one.Seconds
		all.Warnings = append(all.Warnings, one.Warnings...)
		all.Machine.Load = append(all.Machine.Load, one.Machine.Load...)
		for _, f := range one.Figures {
			i := slices.IndexFunc(all.Figures, func(o *figure) bool {
				return o.Case == f.Case && o.Subject == f.Subject && o.What == f.What && o.BesideWhat == f.BesideWhat
			})
			switch {
			case i < 0:
				all.Figures = append(all.Figures, f)
			case f.NotRun == "" || all.Figures[i].NotRun != "":
				all.Figures[i] = f
			}
		}
	}
	return all, nil
}
