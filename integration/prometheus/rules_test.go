// Package prometheus tests contrib/monitoring with Prometheus' own code. It is a module of its own, for no program of cryo's to depend on that.
package prometheus

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	alertsFile    = "../../contrib/monitoring/alerts.yaml"
	dashboardFile = "../../contrib/monitoring/dashboard.json"
)

// firing loads series into a Prometheus, in promtool's notation, a sample each minute, has it evaluate the rules for some time, and returns the alerts that fire in the end, as NAME{LABELS}.
func firing(t *testing.T, series string, after time.Duration) (names []string) {
	t.Helper()
	store := promqltest.LoadedStorage(t, "load 1m\n\t"+strings.ReplaceAll(strings.TrimSpace(series), "\n", "\n\t"))
	defer store.Close()
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, Parser: parser.NewParser(parser.Options{})})
	defer engine.Close()
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, store), AppendableV2: store, Queryable: store, Context: t.Context(), Logger: promslog.NewNopLogger(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, ExternalURL: &url.URL{}, Parser: parser.NewParser(parser.Options{}),
	})
	groups, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, alertsFile)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, g := range groups {
		for at := time.Duration(0); at <= after; at += time.Minute {
			g.Eval(t.Context(), time.Unix(0, 0).Add(at))
		}
		for _, r := range g.AlertingRules() {
			if r.Health() != rules.HealthGood {
				t.Errorf("%s: %v", r.Name(), r.LastError())
			}
			for _, a := range r.ActiveAlerts() {
				if a.State != rules.StateFiring {
					continue
				}
				for name, text := range map[string]string{"summary": a.Annotations.Get("summary"), "description": a.Annotations.Get("description")} {
					if text == "" || strings.Contains(text, "<error") || strings.Contains(text, "{{") {
						t.Errorf("%s has the %s %q", r.Name(), name, text)
					}
				}
				names = append(names, r.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// TestAlerts has each alert fire where it shall, and none where all is well.
func TestAlerts(t *testing.T) {
	const well = `
up{job="cryo-node",instance="a"} 1x120
cryo_restores_total{instance="a",prewarmed="true"} 0+1x120
cryo_restore_waits_total{instance="a"} 0x120
cryo_restore_seconds_bucket{instance="a",le="0.8"} 0+1x120
cryo_restore_seconds_bucket{instance="a",le="+Inf"} 0+1x120
cryo_checkpoints_total{instance="a",result="done"} 0+1x120
cryo_checkpoint_freeze_seconds_bucket{instance="a",le="1.28"} 0+1x120
cryo_checkpoint_freeze_seconds_bucket{instance="a",le="+Inf"} 0+1x120
cryo_prewarm_snapshots{instance="a",state="ready"} 3x120
cryo_prewarm_snapshots{instance="a",state="pending"} 0x120
cryo_prewarm_snapshots{instance="a",state="failed"} 0x120
`
	for name, test := range map[string]struct {
		series string
		after  time.Duration
		want   []string
	}{
		"all is well":                      {well, 2 * time.Hour, nil},
		"a node is down":                   {`up{job="cryo-node",instance="a"} 1x10 0x50`, 20 * time.Minute, []string{"CryoNodeDown"}},
		"another job is down":              {`up{job="other",instance="a"} 0x50`, 20 * time.Minute, nil},
		"few cold starts":                  {well + `cryo_cold_starts_total{instance="a",reason="mounts"} 0+0.1x120`, 2 * time.Hour, nil},
		"many cold starts":                 {well + `cryo_cold_starts_total{instance="a",reason="mounts"} 0+1x120`, 2 * time.Hour, []string{"CryoColdStarts"}},
		"cold starts on another node":      {well + `cryo_cold_starts_total{instance="b",reason="mounts"} _x60 1x60`, 75 * time.Minute, []string{"CryoColdStarts"}},
		"that are long ago":                {well + `cryo_cold_starts_total{instance="b",reason="mounts"} 1x120`, 2 * time.Hour, nil},
		"a wait":                           {`cryo_restore_waits_total{instance="a"} 0x20 1x100`, 25 * time.Minute, []string{"CryoRestoreWaits"}},
		"one that is over":                 {`cryo_restore_waits_total{instance="a"} 0x20 1x100`, 40 * time.Minute, nil},
		"restores are slow":                {"cryo_restore_seconds_bucket{instance=\"a\",le=\"12.8\"} 0x60\ncryo_restore_seconds_bucket{instance=\"a\",le=\"25.6\"} 0+1x60\ncryo_restore_seconds_bucket{instance=\"a\",le=\"+Inf\"} 0+1x60", time.Hour, []string{"CryoRestoresSlow"}},
		"the first checkpoint fails":       {well + `cryo_checkpoints_total{instance="a",result="gpu-mps"} _x60 1x60`, 65 * time.Minute, []string{"CryoCheckpointsFail"}},
		"one has failed long ago":          {well + `cryo_checkpoints_total{instance="a",result="gpu-mps"} _x20 1x100`, 2 * time.Hour, nil},
		"containers stand still":           {"cryo_checkpoint_freeze_seconds_bucket{instance=\"a\",le=\"40.96\"} 0x60\ncryo_checkpoint_freeze_seconds_bucket{instance=\"a\",le=\"81.92\"} 0+1x60\ncryo_checkpoint_freeze_seconds_bucket{instance=\"a\",le=\"+Inf\"} 0+1x60", time.Hour, []string{"CryoFreezesLong"}},
		"a snapshot cannot be prewarmed":   {`cryo_prewarm_snapshots{instance="a",state="failed"} 1x60`, 20 * time.Minute, []string{"CryoPrewarmFails"}},
		"a snapshot is not yet prewarmed":  {`cryo_prewarm_snapshots{instance="a",state="pending"} 1x120`, 59 * time.Minute, nil},
		"it is not prewarmed for an hour":  {`cryo_prewarm_snapshots{instance="a",state="pending"} 1x120`, 61 * time.Minute, []string{"CryoPrewarmPending"}},
		"Kubernetes refuses, and goes on":  {`cryo_kubernetes_errors_total{instance="a",request="event"} 0+1x120`, time.Hour, []string{"CryoKubernetesErrors"}},
		"Kubernetes refuses once in a day": {`cryo_kubernetes_errors_total{instance="a",request="event"} 0x60 1x60`, 2 * time.Hour, nil},
	} {
		if got := firing(t, test.series, test.after); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v fire, not %v", name, got, test.want)
		}
	}
}

// TestDashboard has Prometheus parse each query of the dashboard.
func TestDashboard(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$__range", "6h", "$instance", ".*")
	parse := parser.NewParser(parser.Options{})
	queries := 0
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries++
			if _, err := parse.ParseExpr(grafana.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %v", p.Title, err)
			}
		}
	}
	if queries < 14 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}
