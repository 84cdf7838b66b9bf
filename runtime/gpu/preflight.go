package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/image/record"
	"github.com/cryo-project/cryo/runtime/gpu/device"
	"github.com/cryo-project/cryo/runtime/gpu/library"
)

// Rule is one case that the driver takes down and cannot bring back up, or that ends badly on the way.
type Rule struct {
	Name  string                               // what overrides it
	Why   string                               // what happens if the user goes on all the same
	check func(examination) ([]Finding, error) // which need not name the rule
}

// examination is a container whose devices are to be saved.
type examination struct {
	facts     device.Facts
	devices   []device.Device // those it can see
	processes []cudaProcess
	host      proc
}

// cudaProcess is a process that the driver knows.
type cudaProcess struct {
	Process
	uses []device.DeviceUse
	// Of the engine keeper:
	able     bool              // it will hand memory over
	given    int64             // bytes that it has handed over
	pieces   []record.GPUPiece // these
	imports  []record.GPUImport
	parted   bool   // it has let go of what it shares
	fallback string // why it does not
	// shared are the books of its library; nil: there are none.
	shared *library.Books
}

// idle reports whether it has no context on any device.
func (p cudaProcess) idle() bool { return len(p.uses) == 0 }

// memory is what it holds on all devices, bytes.
func (p cudaProcess) memory() (all int64) {
	for _, u := range p.uses {
		all += u.Memory
	}
	return all
}

// Finding is one thing that stands in the way of a checkpoint.
type Finding struct{ Rule, Problem, Hint string }

// preflight returns what stands in the way by some rules, without what is overridden, and the rules that were overridden and would have refused.
func preflight(s examination, rules []Rule, force []string) (findings []Finding, forced []string, err error) {
	for _, r := range rules {
		found, err := r.check(s)
		if err != nil {
			return nil, nil, fmt.Errorf("preflight %s: %w", r.Name, err)
		}
		if len(found) > 0 && (slices.Contains(force, r.Name) || slices.Contains(force, "all")) {
			forced = append(forced, r.Name)
			continue
		}
		for _, f := range found {
			f.Rule = r.Name
			findings = append(findings, f)
		}
	}
	return findings, forced, nil
}

// RuleNames are those of the rules, all of which can be overridden.
func RuleNames() (names []string) {
	for _, r := range Rules() {
		names = append(names, r.Name)
	}
	return names
}

// CheckForce refuses, as InvalidArgument, a rule that is not there.
func CheckForce(rules []string) error {
	known := RuleNames()
	for _, name := range rules {
		if name != "all" && !slices.Contains(known, name) {
			return failure.New(errdefs.ErrInvalidArgument, "rules that can be overridden: "+strings.Join(known, ", ")+", or all", "there is no rule %q for GPUs", name)
		}
	}
	return nil
}

// refusedToSave returns what stands in the way of a checkpoint, at least one finding, what to do about each, and how to go on all the same; nothing was done.
func refusedToSave(findings []Finding) error {
	var problems, hints, names []string
	for _, f := range findings {
		problems = append(problems, f.Problem+" ("+f.Rule+")")
		if f.Hint != "" && !slices.Contains(hints, f.Hint) {
			hints = append(hints, f.Hint)
		}
		if !slices.Contains(names, f.Rule) {
			names = append(names, f.Rule)
		}
	}
	rules := strings.Join(names, ",")
	hints = append(hints, fmt.Sprintf("to go on all the same and risk the processes: --force %s, or annotation %s=%s", rules, ForceAnnotation, rules))
	return failure.New(errdefs.ErrFailedPrecondition, strings.Join(hints, "; "), "refuse to save its GPUs: %s", strings.Join(problems, "; ")).By(findings[0].Rule)
}
