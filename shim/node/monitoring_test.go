package node

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestMonitoring: contrib/monitoring names only metrics that the service has, and labels that they have; the dashboard names each of them. integration/prometheus loads both files.
func TestMonitoring(t *testing.T) {
	has := exported()
	if len(has) < 16 {
		t.Fatalf("the service has %v", has)
	}
	for file, all := range map[string]bool{"alerts.yaml": false, "dashboard.json": true} {
		data, err := os.ReadFile("../../contrib/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), `\"`, `"`)
		named := map[string]bool{}
		for _, name := range regexp.MustCompile(`\bcryo_\w+`).FindAllString(text, -1) {
			name = regexp.MustCompile(`_bucket$|_count$|_sum$`).ReplaceAllString(name, "")
			if _, ok := has[name]; !ok {
				t.Errorf("%s names %s, which the service does not have", file, name)
			}
			named[name] = true
		}
		for name := range has {
			if all && !named[name] {
				t.Errorf("%s does not name %s", file, name)
			}
		}
		for _, m := range regexp.MustCompile(`by \(([\w, ]+)\) \(+(?:rate|increase)?\(?(cryo_\w+)`).FindAllStringSubmatch(text, -1) {
			labels := has[regexp.MustCompile(`_bucket$`).ReplaceAllString(m[2], "")]
			for by := range strings.SplitSeq(m[1], ", ") {
				if by != "instance" && by != "le" && !slices.Contains(labels, by) {
					t.Errorf("%s groups %s by %s, of which it has only %v", file, m[2], by, labels)
				}
			}
		}
		for _, m := range regexp.MustCompile(`(cryo_\w+)\{(\w+)`).FindAllStringSubmatch(text, -1) {
			if m[2] != "instance" && !slices.Contains(has[m[1]], m[2]) {
				t.Errorf("%s selects %s by %s, of which it has only %v", file, m[1], m[2], has[m[1]])
			}
		}
	}
}

// exported are the labels of the service's metrics, by name, as Prometheus' client describes them.
func exported() map[string][]string {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		newMetrics().registry.Describe(descriptions)
		close(descriptions)
	}()
	text := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`)
	all := map[string][]string{}
	for d := range descriptions {
		if m := text.FindStringSubmatch(d.String()); m != nil {
			all[m[1]] = strings.Split(m[2], ",")
		}
	}
	return all
}
