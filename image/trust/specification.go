package trust

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// specificationTable is the allowlist of a runtime specification's fields: a field that it does not name is refused. A name is a path of JSON keys; [] stands for an element of a
// list, {} for a value of a map. The second column says what a field may be without a grant, which is at most what containerd's own default specification has:
//   - any: whatever it likes.
//   - limit: a number, or text of digits, letters, commas, dashes and the like: neither a path nor several lines.
//   - own: cryo writes it anew.
//   - dropped: [Confine] takes it out.
//   - grant: nothing. The last column is the grant that allows more.
//   - rule: the function in the last column decides.
//
//go:embed specification.tsv
var specificationTable string

type fieldKind string

const (
	anyField   fieldKind = "any"
	limitField fieldKind = "limit"
	ownField   fieldKind = "own"
	dropField  fieldKind = "dropped"
	grantField fieldKind = "grant"
	ruleField  fieldKind = "rule"
)

// field is a row of the table, for one of its names.
type field struct {
	kind fieldKind
	last string // the grant, or the rule
}

// fields returns the rows by the name of the field, and the names of all that have fields in them.
var fields = sync.OnceValues(func() (byName map[string]field, inner map[string]bool) {
	byName, inner = map[string]field{}, map[string]bool{"": true}
	for line := range strings.Lines(specificationTable) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := append(strings.Split(strings.TrimSuffix(line, "\n"), "\t"), "", "", "")
		for _, name := range strings.Fields(columns[0]) {
			byName[name] = field{fieldKind(columns[1]), columns[3]}
			for i, c := range name {
				if c == '.' || c == '[' || c == '{' {
					inner[name[:i]] = true
				}
			}
		}
	}
	return byName, inner
})

// Nothing is the grant of what a snapshot gets by no grant.
const Nothing Grant = "nothing"

// deciders are the functions that decide on fields. Each is called for all specifications: what is not there may be what is asked for.
var deciders = map[string]func(*reviewer, *specs.Spec, Policy){
	"mounts":       (*reviewer).mounts,
	"devices":      func(r *reviewer, s *specs.Spec, _ Policy) { r.devices(s) },
	"capabilities": func(r *reviewer, s *specs.Spec, _ Policy) { r.capabilities(s) },
	"namespaces":   (*reviewer).namespaces,
	"masks":        func(r *reviewer, s *specs.Spec, _ Policy) { r.masks(s) },
	"sysctls":      func(r *reviewer, s *specs.Spec, _ Policy) { r.sysctls(s) },
	"propagation":  func(r *reviewer, s *specs.Spec, _ Policy) { r.propagation(s) },
	"resctrl":      func(r *reviewer, s *specs.Spec, _ Policy) { r.resctrl(s) },
	"scheduling":   func(r *reviewer, s *specs.Spec, _ Policy) { r.scheduling(s) },
	"rlimits":      func(r *reviewer, s *specs.Spec, _ Policy) { r.rlimits(s) },
	"labels":       (*reviewer).labels,
	"cgroupFiles":  func(r *reviewer, s *specs.Spec, _ Policy) { r.cgroupFiles(s) },
}

// order is that of what is asked for.
var order = []string{"mounts", "devices", "capabilities", "namespaces", "masks", "sysctls", "propagation", "resctrl", "scheduling", "rlimits", "labels", "cgroupFiles"}

// specification reviews fields on which no rule decides.
func (r *reviewer) specification(spec *specs.Spec) {
	data, err := json.Marshal(spec)
	if err != nil {
		r.ask(Nothing, "a specification that cannot be written: %v", err)
		return
	}
	r.fields("", decoded(data), true)
}

// Known lists what a specification has that the table does not name, such as a field of a newer version of the format: no grant allows it, since it is not known what it does.
func Known(raw json.RawMessage) []Request {
	r := newReviewer("specification")
	r.fields("", decoded(raw), false)
	return r.requests
}

// decoded is JSON as maps, lists and values; nil if it is none.
func decoded(data []byte) (value any) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&value) != nil {
		return nil
	}
	return value
}

// fields reviews a field and all in it. Without values it looks at names alone.
func (r *reviewer) fields(name string, value any, values bool) {
	if value == nil {
		return
	}
	byName, inner := fields()
	if f, ok := byName[name]; ok {
		if values {
			r.field(name, f, value)
		}
		return
	}
	switch v := value.(type) {
	case map[string]any:
		if inner[name+"{}"] || byName[name+"{}"].kind != "" {
			for _, in := range v {
				r.fields(name+"{}", in, values)
			}
			return
		}
		if !inner[name] {
			break
		}
		for key, in := range v {
			full := strings.TrimPrefix(name+"."+key, ".")
			if _, ok := byName[full]; !ok && !inner[full] {
				r.unknown(full)
				continue
			}
			r.fields(full, in, values)
		}
		return
	case []any:
		if inner[name+"[]"] || byName[name+"[]"].kind != "" {
			for _, in := range v {
				r.fields(name+"[]", in, values)
			}
			return
		}
	}
	r.unknown(name)
}

func (r *reviewer) unknown(name string) {
	r.ask(Nothing, "the field %s of the specification, which is not known", brief(name))
}

// field reviews one field on which no rule decides.
func (r *reviewer) field(name string, f field, value any) {
	text := fmt.Sprint(value)
	switch {
	case f.kind == limitField && !isLimit(text):
		r.ask(Nothing, "%s of %s", name, brief(text))
	case f.kind == grantField && !slices.Contains([]string{"", "0", "false"}, text):
		r.ask(Grant(f.last), "%s of %s", name, brief(text))
	}
}

// isLimit reports whether a text is a number, a list of them, or words: what a file of a cgroup can hold, and what leads nowhere else.
func isLimit(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool {
		return !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.ContainsRune("-_,:. =+", c))
	}) < 0
}

// brief is text of a specification for a message.
func brief(text string) string {
	const most = 100
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "?") + "..."
	}
	return fmt.Sprintf("%q", text)
}
