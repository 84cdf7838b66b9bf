package trust

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// devices reviews device nodes, the cgroup's rules for devices, and network devices moved into the container. On restore
// runc binds each node from the same path of the host, so the path counts as much as the numbers.
func (r *reviewer) devices(spec *specs.Spec) {
	for _, d := range spec.Linux.Devices {
		if o, ok := PlainDevices[d.Path]; ok && d.Type == "c" && d.Major == o.Major && d.Minor == o.Minor {
			continue
		}
		r.ask(Devices, "the device %s (%s %d:%d)", d.Path, d.Type, d.Major, d.Minor)
	}
	if spec.Linux.Resources != nil {
		for _, rule := range spec.Linux.Resources.Devices {
			if rule.Allow && !ordinaryRule(rule) {
				r.ask(Devices, "access %s to devices %s %s:%s", rule.Access, orAll(rule.Type), number(rule.Major), number(rule.Minor))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Linux.NetDevices)) {
		r.ask(Devices, "the network device %s", name)
	}
}

// cdi reviews CDI devices by their names. One stands for nodes, mounts, variables and hooks, all of them out of files of
// this host.
func (r *reviewer) cdi(names []string, p Policy) {
	for _, name := range names {
		if !slices.Contains(p.Devices, name) {
			r.requests = append(r.requests, Request{Rule: r.rule, Grant: Devices, What: "the CDI device " + name, Flag: "--device " + name})
		}
	}
}

// ordinaryRule: making a node opens nothing, so mknod of any device is as free as it is with ctr and nerdctl.
func ordinaryRule(rule specs.LinuxDeviceCgroup) bool {
	if strings.Trim(rule.Access, "m") == "" && rule.Access != "" {
		return true
	}
	if rule.Type != "c" || rule.Major == nil {
		return false
	}
	if *rule.Major == TerminalMajor {
		return true
	}
	for _, o := range PlainDevices {
		if rule.Minor != nil && o == (DeviceNumber{Major: *rule.Major, Minor: *rule.Minor}) {
			return true
		}
	}
	return false
}

func orAll(kind string) string {
	if kind == "" {
		return "a"
	}
	return kind
}

func number(n *int64) string {
	if n == nil || *n < 0 {
		return "*"
	}
	return fmt.Sprint(*n)
}
