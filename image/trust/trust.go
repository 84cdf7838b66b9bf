package trust

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cryo-project/cryo/image/failure"
)

// Grant is a kind of reach into the host.
type Grant string

// The grants there are.
const (
	Mounts       Grant = "mounts"       // bind mounts and other file systems of the host
	Devices      Grant = "devices"      // devices beyond null, zero, full, random, urandom, tty, console and ptmx
	Capabilities Grant = "capabilities" // capabilities beyond those a container has by default
	Namespaces   Grant = "namespaces"   // namespaces of the host, or of a path
	Privileges   Grant = "privileges"   // unmasked kernel files, sysctls of the host, mount propagation, real-time scheduling, priority over others
	All          Grant = "all"
)

// Grants lists all grants.
func Grants() []Grant { return []Grant{Mounts, Devices, Capabilities, Namespaces, Privileges, All} }

// ParseGrant returns the grant of a name, or an error of kind InvalidArgument.
func ParseGrant(name string) (Grant, error) {
	if g := Grant(name); slices.Contains(Grants(), g) {
		return g, nil
	}
	var names []string
	for _, g := range Grants() {
		names = append(names, string(g))
	}
	return "", failure.New(errdefs.ErrInvalidArgument, "--allow takes "+strings.Join(names, ", "), "there is no grant %q", name)
}

// Policy is what the person who restores allows. The zero value allows what every container has.
type Policy struct {
	Allow []Grant
	// Mounts are destinations whose source that person gave; that is a grant.
	Mounts []string
	// Namespaces are kinds of namespaces whose path that person gave; that is a grant.
	Namespaces []specs.LinuxNamespaceType
	// Devices are names of CDI devices that that person gave; that is a grant.
	Devices []string
	// AppArmor says that containers have a profile of AppArmor's on this host.
	AppArmor bool
}

// Allows reports whether the policy holds a grant.
func (p Policy) Allows(g Grant) bool {
	return slices.Contains(p.Allow, g) || slices.Contains(p.Allow, All)
}

// Request is one thing that a snapshot asks for beyond what every container has.
type Request struct {
	Rule    string `json:"rule"` // by which it was found
	Grant   Grant  `json:"grant"`
	What    string `json:"what"`
	Flag    string `json:"flag"` // of cryo restore, that grants it; empty: none does
	Allowed bool   `json:"allowed"`
}

// NewRequest is a request that is not allowed yet.
func NewRequest(rule string, g Grant, what string) Request {
	flag := "--allow " + string(g)
	if g == Nothing {
		flag = ""
	}
	return Request{Rule: rule, Grant: g, What: what, Flag: flag}
}

// Review lists what a specification asks for, in the order of its kinds; cdi are the CDI devices that it is to get.
func Review(spec *specs.Spec, cdi []string, p Policy) []Request {
	r := newReviewer("specification")
	if spec.Linux == nil {
		bare := *spec
		bare.Linux = &specs.Linux{} // which has no namespaces and masks nothing
		spec = &bare
	}
	for i, rule := range order {
		if deciders[rule](&r, spec, p); i == 1 {
			r.cdi(cdi, p)
		}
	}
	r.specification(spec)
	return p.Judge(r.requests)
}

// Judge says of each request whether the policy allows it.
func (p Policy) Judge(requests []Request) []Request {
	for i := range requests {
		requests[i].Allowed = requests[i].Grant != Nothing && p.Allows(requests[i].Grant)
	}
	return requests
}

// Refuse returns an error of kind PermissionDenied if something is asked for that was not allowed.
func Refuse(requests []Request) error {
	refused := slices.DeleteFunc(slices.Clone(requests), func(r Request) bool { return r.Allowed })
	if len(refused) > 0 {
		return refusal(refused)
	}
	return nil
}

// Confine returns an error of kind PermissionDenied if the specification asks for what the policy does not allow. Otherwise
// it takes out of it, in place, what no snapshot gets, and says what that was. The CDI devices are not in the specification yet:
// the program that has the answer puts them in, by this host's own files.
func Confine(spec *specs.Spec, cdi []string, p Policy) (dropped []string, err error) {
	if err := Refuse(Review(spec, cdi, p)); err != nil {
		return nil, err
	}
	mask(spec)
	return drop(spec), nil
}

type reviewer struct {
	rule     string
	requests []Request
	asked    map[string]bool
	number   map[Grant]int
}

func newReviewer(rule string) reviewer {
	return reviewer{rule: rule, asked: map[string]bool{}, number: map[Grant]int{}}
}

// maxRequests bounds how many things of one grant are listed.
const maxRequests = 4096

// MaxRequests bounds how many things are listed.
var MaxRequests = maxRequests * len(Grants())

// ask asks once for each thing: many processes may hold the same.
func (r *reviewer) ask(g Grant, format string, a ...any) {
	if r.number[g] == maxRequests {
		return
	}
	what := fmt.Sprintf(format, a...)
	if key := string(g) + what; r.asked[key] {
		return
	} else {
		r.asked[key] = true
		r.number[g]++
	}
	r.requests = append(r.requests, NewRequest(r.rule, g, what))
}

// refusal returns the error that a snapshot asks for what was not allowed. Its rule is that of the first request. Its hint names the flags that allow all of them.
func refusal(requests []Request) error {
	var text strings.Builder
	text.WriteString("the snapshot asks for more of this host than a container has by default:")
	const most = 8 // of each kind: a privileged container has every device there is
	shown := map[Grant]int{}
	var flags []string
	for _, r := range requests {
		if shown[r.Grant]++; shown[r.Grant] <= most {
			fmt.Fprintf(&text, "\n  %s: %s (rule %s)", r.Grant, OneLine(r.What), r.Rule)
		}
		if !slices.Contains(flags, r.Flag) {
			flags = append(flags, r.Flag)
		}
	}
	for _, g := range append(Grants(), Nothing) {
		if more := shown[g] - most; more > 0 {
			fmt.Fprintf(&text, "\n  %s: and %d more (cryo inspect lists all)", g, more)
		}
	}
	hint := "if you trust the snapshot with this, add: " + strings.Join(flags, " ")
	if shown[Nothing] > 0 {
		hint = "no container gets this from a snapshot: do not trust it"
	}
	return failure.New(errdefs.ErrPermissionDenied, hint, "%s", text.String()).By(requests[0].Rule)
}
