package host

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/image/failure"
)

// FitTarget is the host that shall run the snapshot.
type FitTarget struct {
	image.Host
	// PathExists tells whether a path is there on the host, for sources of bind mounts and for devices.
	PathExists func(path string) bool
	// Seccomp tells that the host's runc is built with seccomp.
	Seccomp bool
	// GPUs are looked at only for a snapshot that has some.
	GPUs FitGPUs
}

// FitRule is one comparison.
type FitRule struct {
	Name  string `json:"name"`  // what --force takes
	Fatal bool   `json:"fatal"` // else a warning
	Why   string `json:"why"`   // what happens in a restore all the same
	check func(comparison, FitTarget) []mismatch
}

// Forcible reports whether the rule can be overridden: something may come of it.
func (r FitRule) Forcible() bool { return !mandatory[r.Name] }

// mismatch is what a rule has against a host.
type mismatch struct{ problem, hint string }

// comparison is a snapshot's config with its runtime specification decoded.
type comparison struct {
	image.Config
	spec *specs.Spec // nil if it cannot be decoded
}

// FitFinding is one mismatch of a snapshot and a host.
type FitFinding struct {
	Rule    string `json:"rule"`
	Fatal   bool   `json:"fatal"`
	Forced  bool   `json:"forced,omitempty"` // fatal, but overridden
	Problem string `json:"problem"`
	Hint    string `json:"hint,omitempty"`
}

// FitVerdict is all that was found.
type FitVerdict struct {
	Findings []FitFinding `json:"findings"`
}

// CheckFit compares a snapshot with a host, in the order of [FitRules].
func CheckFit(c image.Config, t FitTarget) FitVerdict {
	s := comparison{Config: c}
	var spec specs.Spec
	if err := json.Unmarshal(c.Spec, &spec); err == nil {
		s.spec = &spec
	}
	v := FitVerdict{Findings: []FitFinding{}}
	for _, r := range FitRules() {
		for _, m := range r.check(s, t) {
			v.Findings = append(v.Findings, FitFinding{Rule: r.Name, Fatal: r.Fatal, Problem: m.problem, Hint: m.hint})
		}
	}
	return v
}

// Force overrides the rules named; "all" is every rule that can be overridden. It is an error of kind InvalidArgument
// to name a rule that is not there.
func (v FitVerdict) Force(rules ...string) (FitVerdict, error) {
	known := FitRules()
	for _, name := range rules {
		if name != "all" && !slices.ContainsFunc(known, func(r FitRule) bool { return r.Name == name }) {
			return v, failure.New(errdefs.ErrInvalidArgument, "rules that can be overridden: "+strings.Join(Forcible(), ", ")+", or all", "there is no rule %q", name)
		}
	}
	forced := FitVerdict{Findings: slices.Clone(v.Findings)}
	for i, f := range forced.Findings {
		if f.Fatal && (slices.Contains(rules, f.Rule) || slices.Contains(rules, "all")) && !mandatory[f.Rule] {
			forced.Findings[i].Forced = true
		}
	}
	return forced, nil
}

// Fits reports whether nothing fatal was found, or all of it is overridden.
func (v FitVerdict) Fits() bool { return len(v.fatal()) == 0 }

// Err returns nil if the snapshot fits, else a [Misfit].
func (v FitVerdict) Err() error {
	if fatal := v.fatal(); len(fatal) > 0 {
		return Misfit(fatal...)
	}
	return nil
}

// Warnings are the findings that do not stand in the way.
func (v FitVerdict) Warnings() []FitFinding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f FitFinding) bool { return f.Fatal && !f.Forced })
}

func (v FitVerdict) fatal() []FitFinding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f FitFinding) bool { return !f.Fatal || f.Forced })
}

// RefuseMisfit returns the error that text begins and that lists findings, at least one. It has the hint of each, and the rule of the first.
func RefuseMisfit(kind error, text string, findings ...FitFinding) error {
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
func Misfit(findings ...FitFinding) error {
	return RefuseMisfit(failure.ErrMisfit, "the snapshot does not fit this host:", findings...)
}

// Forcible names the rules that can be overridden.
func Forcible() (names []string) {
	for _, r := range FitRules() {
		if r.Fatal && r.Forcible() {
			names = append(names, r.Name)
		}
	}
	return names
}
