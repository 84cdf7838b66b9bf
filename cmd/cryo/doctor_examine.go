package main

import (
	"context"
	"fmt"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/shim/config"
)

// Verdicts of a check.
const (
	good    = "ok"
	note    = "note" // worth knowing, nothing to mend
	worry   = "warn" // works, with less
	trouble = "fail" // does not work
)

// Diagnosis is of one thing that was looked at.
type Diagnosis struct {
	Name   string `json:"name"`
	Status string `json:"status"` // ok, note, warn or fail
	Detail string `json:"detail"`
	Mend   string `json:"mend,omitempty"` // what to do
}

// doctorOptions say what is looked at.
type doctorOptions struct {
	Config    config.Config
	ConfigErr error  // why there is no Config
	Address   string // of containerd
	Connect   func(context.Context) (context.Context, *containerd.Client, error)
}

// patient is what the doctor looks at.
type patient struct {
	doctorOptions
	root  string   // of /proc and /sys
	criu  string   // path; empty: none
	paths []string // where containerd looks for programs
}

// Examine runs every check, in the order in which they are for reading.
func Examine(ctx context.Context, o doctorOptions) []Diagnosis {
	p := patient{doctorOptions: o, root: "/"}
	if p.ConfigErr != nil {
		p.Config = config.Default()
	}
	p.criu, _ = p.Config.FindCRIU()
	var all []Diagnosis
	for _, check := range []func(context.Context, *patient) []Diagnosis{
		checkUser, checkConfig, checkKernel, checkCgroup, checkContainerd, checkShim, checkRunc, checkCRIU, checkFeatures,
		checkNetwork, checkOverlay, checkDisk, checkGPU, checkCRI,
	} {
		all = append(all, check(ctx, &p)...)
	}
	return all
}

// Sick is an error where something keeps cryo from working, FailedPrecondition.
func Sick(all []Diagnosis) error {
	var names []string
	mend := ""
	for _, d := range all {
		if d.Status != trouble {
			continue
		}
		if len(names) == 0 {
			mend = d.Mend
		}
		names = append(names, d.Name)
	}
	if len(names) == 0 {
		return nil
	}
	return failure.New(errdefs.ErrFailedPrecondition, mend, "this host is not ready: %s", strings.Join(names, ", "))
}

// found makes the result of one check.
func found(name, status, mend, format string, args ...any) []Diagnosis {
	return []Diagnosis{{Name: name, Status: status, Mend: mend, Detail: fmt.Sprintf(format, args...)}}
}
