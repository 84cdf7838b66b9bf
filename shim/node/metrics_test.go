package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image/failure"
	"github.com/cryo-project/cryo/runtime/host"
	"github.com/cryo-project/cryo/shim/save"
)

func TestResult(t *testing.T) {
	for want, err := range map[string]error{
		"done": nil, "unavailable": failure.New(errdefs.ErrUnavailable, "", "x"), "unknown": errors.New("x"),
		"gpu-count": host.Misfit(host.FitFinding{Rule: "gpu-count"}), "deadline exceeded": context.DeadlineExceeded,
	} {
		if got := result(err); got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// happen has the service hear an event of a container that is in no pod.
func happen(t *testing.T, v *service, topic string, fields map[string]any) {
	t.Helper()
	s, err := structpb.NewStruct(fields)
	if err != nil {
		t.Fatal(err)
	}
	event, err := typeurl.MarshalAny(s)
	if err != nil {
		t.Fatal(err)
	}
	v.heard(t.Context(), nil, &events.Envelope{Topic: topic, Namespace: "k8s.io", Event: event})
}

// TestHeard: what containers do is counted.
func TestHeard(t *testing.T) {
	m := newMetrics()
	var said []Entry
	k := newWarmer(Options{}, nil, nil, m, nil)
	k.states = map[string]State{"a": {Digest: "sha256:1", State: ready}, "b": {Digest: "sha256:2", State: failed}}
	v := &service{o: Options{Log: func(e Entry) { said = append(said, e) }}, metrics: m, warmer: k}
	for _, d := range []string{"sha256:1", "sha256:1", "sha256:2", ""} {
		happen(t, v, restoredTopic, map[string]any{"container_id": "c", "snapshot": "r", "digest": d, "seconds": 0.8})
	}
	for _, class := range []string{"mounts", "unavailable", "unavailable"} {
		happen(t, v, fallbackTopic, map[string]any{"container_id": "c", "snapshot": "r", "reason": "cpu-features: x", "class": class})
	}
	happen(t, v, waitingTopic, map[string]any{"container_id": "c"})
	happen(t, v, "/cryo/restore/new", map[string]any{"container_id": 7})
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(`
# HELP cryo_cold_starts_total Containers that were started instead of restored, by the rule that refused the snapshot, or the kind of the error.
# TYPE cryo_cold_starts_total counter
cryo_cold_starts_total{reason="mounts"} 1
cryo_cold_starts_total{reason="unavailable"} 2
# HELP cryo_restore_waits_total Times that the memory of a restored container did not come.
# TYPE cryo_restore_waits_total counter
cryo_restore_waits_total 1
# HELP cryo_restores_total Containers that were restored as they asked for, by whether their snapshot was prewarmed.
# TYPE cryo_restores_total counter
cryo_restores_total{prewarmed="false"} 2
cryo_restores_total{prewarmed="true"} 2
`), "cryo_cold_starts_total", "cryo_restore_waits_total", "cryo_restores_total"); err != nil {
		t.Error(err)
	}
	happen(t, v, save.EndedTopic, map[string]any{"container_id": "c", "snapshot": "r", "digest": "sha256:3", "result": "done", "freeze": 0.5, "bytes": 100, "sent": 60, "phases": map[string]any{"dump": 0.25, "push": -1}})
	happen(t, v, save.EndedTopic, map[string]any{"container_id": "c", "snapshot": "r", "result": "gpu-mps", "reason": "because", "freeze": 0})
	if err := testutil.GatherAndCompare(m.registry, strings.NewReader(`
# HELP cryo_checkpoint_bytes_total Size of all snapshots that were taken.
# TYPE cryo_checkpoint_bytes_total counter
cryo_checkpoint_bytes_total 100
# HELP cryo_checkpoint_phase_seconds_total Time spent on checkpoints, by phase.
# TYPE cryo_checkpoint_phase_seconds_total counter
cryo_checkpoint_phase_seconds_total{phase="dump"} 0.25
cryo_checkpoint_phase_seconds_total{phase="push"} 0
# HELP cryo_checkpoint_sent_bytes_total Bytes that went to registries with checkpoints.
# TYPE cryo_checkpoint_sent_bytes_total counter
cryo_checkpoint_sent_bytes_total 60
# HELP cryo_checkpoints_total Checkpoints: done, the rule that refused it, or the kind of the error.
# TYPE cryo_checkpoints_total counter
cryo_checkpoints_total{result="done"} 1
cryo_checkpoints_total{result="gpu-mps"} 1
`), "cryo_checkpoints_total", "cryo_checkpoint_bytes_total", "cryo_checkpoint_sent_bytes_total", "cryo_checkpoint_phase_seconds_total"); err != nil {
		t.Error(err)
	}
	all, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if h := f.GetMetric()[0].GetHistogram(); f.GetName() == "cryo_checkpoint_freeze_seconds" && (h.GetSampleCount() != 1 || h.GetSampleSum() != 0.5) {
			t.Errorf("%v", f)
		}
	}
	if len(said) != 10 || said[0].Seconds != 0.8 || said[8].What != "checkpoint: done" || said[9].What != "checkpoint: gpu-mps: because" {
		t.Errorf("it says %+v", said)
	}
}

func TestPhases(t *testing.T) {
	p := &phases{metrics: newMetrics()}
	for _, what := range []string{"pull", "pull", "verify", "pull"} {
		p.progress(what, 1, 2)
		time.Sleep(10 * time.Millisecond)
	}
	p.end()
	pull, verify := testutil.ToFloat64(p.metrics.phases.WithLabelValues("pull")), testutil.ToFloat64(p.metrics.phases.WithLabelValues("verify"))
	if verify < 0.01 || pull < 0.03 {
		t.Errorf("pull %v s, verify %v s", pull, verify)
	}
}

// TestServe: /healthz says what is wrong, and the socket of a service that was killed is in nobody's way.
func TestServe(t *testing.T) {
	v := &service{o: Options{Log: func(e Entry) { t.Errorf("%+v", e) }}, metrics: newMetrics()}
	v.warmer = newWarmer(Options{}, nil, nil, v.metrics, nil)
	v.warmer.want = Wanted{Snapshots: []Snapshot{{Ref: "r"}}}
	address := "unix:" + t.TempDir() + "/s"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := listen(ctx, address); err != nil {
		t.Fatal(err)
	}
	l, err := listen(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { v.serve(ctx, l); close(served) }()
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(address, "unix:"))
	}}}
	get := func(path string) (int, string) {
		r, err := client.Get("http://x" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, _ := io.ReadAll(r.Body)
		return r.StatusCode, string(body)
	}
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"containerd":false`) || !strings.Contains(body, `{"reference":"r","state":"pending"}`) {
		t.Errorf("%d %s", code, body)
	}
	v.connected.Store(true)
	if code, body := get("/healthz"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	v.warmer.fileErr = errors.New("no such file")
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "no such file") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := get("/metrics"); code != http.StatusOK || !strings.Contains(body, `cryo_prewarm_snapshots{state="pending"}`) {
		t.Errorf("%d %s", code, body)
	}
	port, err := listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	also := make(chan struct{})
	go func() { v.serve(ctx, port); close(also) }()
	r, err := http.Get("http://" + port.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	_ = r.Body.Close()
	if text := string(body); r.StatusCode != http.StatusServiceUnavailable || strings.Contains(text, "reference") || strings.Contains(text, "no such file") {
		t.Errorf("everybody hears %d %s", r.StatusCode, text)
	}
	cancel()
	<-served
	<-also
}
