package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/cryo-project/cryo/shim/config"
)

// Verdicts of a check.
const (
	good    = "ok"
	note    = "note" // worth knowing, nothing to mend
	worry   = "warn" // works, with less
	trouble = "fail" // does not work
)

// examined is one thing the doctor looked at.
type examined struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, note, warn or fail
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitempty"` // what to do
}

// patient is what the doctor looks at.
type patient struct {
	app       *app
	root      string // of /proc and /sys
	config    config.Config
	configErr error
	criu      string   // path; empty: none
	paths     []string // where containerd looks for programs
}

// sickError says that the doctor found something that keeps cryo from working. Its kind is FailedPrecondition.
type sickError struct{ failed []examined }

func (e *sickError) Error() string {
	var names []string
	for _, x := range e.failed {
		names = append(names, x.Name)
	}
	return "this host is not ready: " + strings.Join(names, ", ")
}

func (e *sickError) Hint() string { return e.failed[0].Mend }

func (e *sickError) Is(target error) bool { return target == errdefs.ErrFailedPrecondition }

func newDoctor(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Examine this host, and say what to repair and how",
		Long: `doctor examines what checkpoint and restore need of this host: kernel, CRIU, runc, containerd, the shim,
cgroups, disk and GPU. The exit code is 4 if something keeps cryo from working.`,
		Example: `  cryo doctor
  cryo doctor --json | jq '.[] | select(.status == "fail")'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all := examine(cmd.Context(), a)
			if err := a.printExamined(all); err != nil {
				return err
			}
			failed := slices.DeleteFunc(slices.Clone(all), func(x examined) bool { return x.Status != trouble })
			if len(failed) > 0 {
				return &sickError{failed: failed}
			}
			return nil
		},
	}
}

func (a *app) printExamined(all []examined) error {
	if a.json {
		return a.printJSON(all)
	}
	rows := [][]string{}
	for _, x := range all {
		rows = append(rows, []string{x.Status, x.Name, x.Detail})
	}
	if err := a.table(rows...); err != nil {
		return err
	}
	for _, x := range all {
		if x.Mend != "" {
			a.line("\n%s: %s\n  %s", x.Status, x.Name, x.Mend)
		}
	}
	return nil
}

// examine runs every check, in the order they are printed.
func examine(ctx context.Context, a *app) []examined {
	p := patient{app: a, root: "/"}
	p.config, p.configErr = a.config()
	if p.configErr != nil {
		p.config = config.Default()
	}
	p.criu, _ = p.config.FindCRIU()
	var all []examined
	for _, check := range []func(context.Context, *patient) []examined{
		checkUser, checkConfig, checkKernel, checkCgroup, checkContainerd, checkShim, checkRunc, checkCRIU, checkFeatures,
		checkNetwork, checkOverlay, checkDisk, checkGPU,
	} {
		all = append(all, check(ctx, &p)...)
	}
	return all
}

// found makes the result of one check.
func found(name, status, mend, format string, args ...any) []examined {
	return []examined{{Name: name, Status: status, Mend: mend, Detail: fmt.Sprintf(format, args...)}}
}
