package gpu

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// candidate is a device of this host all of whose edits are in a specification.
type candidate struct {
	name  string
	units []string // nodes of single GPUs
}

// Find names the devices of this host that a container was given: fewest and smallest that give it all its GPUs. One GPU has
// several names, and so have all together; 0 and 1 are preferred to names with UUIDs, which no other host has, and to "all",
// which is another number of GPUs elsewhere. Without CDI, or where the files have changed since, there are none.
func (h *CDI) Find(spec *specs.Spec) []string {
	var all []candidate
	for _, name := range h.Names() {
		e, err := h.Edits([]string{name})
		if err != nil || !e.In(spec) {
			continue // it is not what the container has
		}
		if units := unitsOf(e.Devices); len(units) > 0 {
			all = append(all, candidate{name, units})
		}
	}
	slices.SortFunc(all, preferred)
	var chosen []candidate
	for _, c := range all {
		if !covered(c, chosen) {
			chosen = append(chosen, c)
		}
	}
	// A part of a GPU is no longer needed where the whole of it was found later.
	for i := 0; i < len(chosen); {
		if others := slices.Delete(slices.Clone(chosen), i, i+1); covered(chosen[i], others) {
			chosen = others
		} else {
			i++
		}
	}
	slices.SortStableFunc(chosen, func(a, b candidate) int { return natural(a.units[0], b.units[0]) })
	var names []string
	for _, c := range chosen {
		names = append(names, c.name)
	}
	return names
}

func unitsOf(devices []specs.LinuxDevice) []string {
	var units []string
	for _, d := range devices {
		if p := path.Clean(d.Path); deviceUnit().MatchString(p) {
			units = append(units, p)
		}
	}
	slices.SortFunc(units, natural)
	return slices.Compact(units)
}

// covered reports whether all GPUs of c are among those of others.
func covered(c candidate, others []candidate) bool {
	return !slices.ContainsFunc(c.units, func(u string) bool {
		return !slices.ContainsFunc(others, func(o candidate) bool { return slices.Contains(o.units, u) })
	})
}

// preferred orders smaller devices before larger ones, and among names of the same nodes numbers first and UUIDs last.
func preferred(a, b candidate) int {
	return cmp.Or(
		cmp.Compare(len(a.units), len(b.units)),
		cmp.Compare(rank(a.name), rank(b.name)),
		natural(a.name, b.name),
	)
}

func rank(name string) int {
	_, _, device, err := parser.ParseQualifiedName(name)
	switch {
	case err != nil || strings.Contains(device, "GPU-") || strings.Contains(device, "MIG-"):
		return 3
	case device == "all":
		return 2
	case device[0] >= '0' && device[0] <= '9':
		return 0
	}
	return 1
}

// natural compares text with numbers at its end by these numbers.
func natural(a, b string) int {
	ha, na := trailingNumber(a)
	hb, nb := trailingNumber(b)
	return cmp.Or(cmp.Compare(ha, hb), cmp.Compare(na, nb), cmp.Compare(a, b))
}

func trailingNumber(s string) (head string, n int) {
	head = strings.TrimRight(s, "0123456789")
	n, _ = strconv.Atoi(s[len(head):]) // no number is 0
	return head, n
}
