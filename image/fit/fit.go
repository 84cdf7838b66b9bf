// Package fit decides whether a snapshot can run on a host, before anything is started.
//
// All that is compared stands in one table of rules, see [Rules]; a mismatch is fatal or a warning. A fatal one can be
// overridden by the rule's name, by a user who knows better.
package fit

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/spec/failure"
)

// Target is the host that shall run the snapshot.
type Target struct {
	image.Host
	// PathExists tells whether a path is there on the host, for sources of bind mounts and for devices.
	PathExists func(path string) bool
	// Seccomp tells that the host's runc is built with seccomp.
	Seccomp bool
	// GPUs are looked at only for a snapshot that has some.
	GPUs GPUs
}

// Rule is one comparison.
type Rule struct {
	Name  string `json:"name"`  // what --force takes
	Fatal bool   `json:"fatal"` // else a warning
	Why   string `json:"why"`   // what happens in a restore all the same
	check func(comparison, Target) []mismatch
}

// Forcible reports whether the rule can be overridden: something may come of it.
func (r Rule) Forcible() bool { return !mandatory[r.Name] }

// mismatch is what a rule has against a host.
type mismatch struct{ problem, hint string }

// comparison is a snapshot's config with its runtime specification decoded.
type comparison struct {
	image.Config
	spec *specs.Spec // nil if it cannot be decoded
}

// Finding is one mismatch of a snapshot and a host.
type Finding struct {
	Rule    string `json:"rule"`
	Fatal   bool   `json:"fatal"`
	Forced  bool   `json:"forced,omitempty"` // fatal, but overridden
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// Verdict is all that was found.
type Verdict struct {
	Findings []Finding `json:"findings"`
}

// Check compares a snapshot with a host, in the order of [Rules].
func Check(c image.Config, t Target) Verdict {
	s := comparison{Config: c}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err == nil {
		s.spec = &spec
	}
	v := Verdict{Findings: []Finding{}}
	for _, r := range Rules() {
		for _, m := range r.check(s, t) {
			v.Findings = append(v.Findings, Finding{Rule: r.Name, Fatal: r.Fatal, Problem: m.problem, Hint: m.hint})
		}
	}
	return v
}

// Force overrides the rules named; "all" is every rule that can be overridden. It is an error of kind InvalidArgument
// to name a rule that is not there.
func (v Verdict) Force(rules ...string) (Verdict, error) {
	known := Rules()
	for _, name := range rules {
		if name != "all" && !slices.ContainsFunc(known, func(r Rule) bool { return r.Name == name }) {
			return v, failure.New(errdefs.ErrInvalidArgument, "rules that can be overridden: "+strings.Join(Forcible(), ", ")+", or all", "there is no rule %q", name)
		}
	}
	forced := Verdict{Findings: slices.Clone(v.Findings)}
	for i, f := range forced.Findings {
		if f.Fatal && (slices.Contains(rules, f.Rule) || slices.Contains(rules, "all")) && !mandatory[f.Rule] {
			forced.Findings[i].Forced = true
		}
	}
	return forced, nil
}

// Fits reports whether nothing fatal was found, or all of it is overridden.
func (v Verdict) Fits() bool { return len(v.fatal()) == 0 }

// Err returns nil if the snapshot fits, else a [Misfit].
func (v Verdict) Err() error {
	if fatal := v.fatal(); len(fatal) > 0 {
		return Misfit(fatal...)
	}
	return nil
}

// Warnings are the findings that do not stand in the way.
func (v Verdict) Warnings() []Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return f.Fatal && !f.Forced })
}

func (v Verdict) fatal() []Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f Finding) bool { return !f.Fatal || f.Forced })
}

// Refuse returns the error that text begins and that lists findings, at least one. It has the hint of each, and the rule of the first.
func Refuse(kind error, text string, findings ...Finding) error {
	var hints []string
	for _, f := range findings {
		text += fmt.Sprintf("\n  %s: %s", f.Rule, f.Problem)
		if f.Hint != "" && !slices.Contains(hints, f.Hint) {
			hints = append(hints, f.Hint)
		}
	}
	return failure.New(kind, strings.Join(hints, "\n"), "%s", text).By(findings[0].Rule)
}

// Misfit returns an error that lists why a snapshot does not fit this host. The error has the kind [failure.ErrMisfit], for which the command line has an exit code of its own.
func Misfit(findings ...Finding) error {
	return Refuse(failure.ErrMisfit, "the snapshot does not fit this host:", findings...)
}

// Forcible names the rules that can be overridden.
func Forcible() (names []string) {
	for _, r := range Rules() {
		if r.Fatal && r.Forcible() {
			names = append(names, r.Name)
		}
	}
	return names
}
