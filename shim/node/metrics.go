package node

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cryo-project/cryo/image/failure"
)

// metrics are what /metrics has. Values of labels are of small fixed sets.
type metrics struct {
	registry *prometheus.Registry

	prewarms *prometheus.CounterVec // by result
	phases   *prometheus.CounterVec // seconds, by phase
	fetched  prometheus.Counter     // bytes
	kept     *prometheus.GaugeVec   // by state
	disk     prometheus.Gauge       // bytes
	gpu      prometheus.Gauge       // bytes
	restores *prometheus.CounterVec // by whether it was prewarmed
	seconds  prometheus.Histogram
	cold     *prometheus.CounterVec // by reason
	waiting  prometheus.Counter
	api      *prometheus.CounterVec // requests to Kubernetes that have failed, by what for

	checkpoints *prometheus.CounterVec // by result
	froze       prometheus.Histogram   // seconds
	took        *prometheus.CounterVec // seconds, by phase
	taken, sent prometheus.Counter     // bytes
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	m := &metrics{
		registry: prometheus.NewRegistry(),
		prewarms: prometheus.NewCounterVec(counter("cryo_prewarms_total", "Snapshots that were prewarmed, or could not be: done, the rule that refused it, or the kind of the error."), []string{"result"}),
		phases:   prometheus.NewCounterVec(counter("cryo_prewarm_phase_seconds_total", "Time spent on prewarming, by phase."), []string{"phase"}),
		fetched:  prometheus.NewCounter(counter("cryo_prewarm_fetched_bytes_total", "Bytes that came from registries for prewarmed snapshots.")),
		kept:     prometheus.NewGaugeVec(gauge("cryo_prewarm_snapshots", "Snapshots that are to be kept prewarmed: ready, pending or failed."), []string{"state"}),
		disk:     prometheus.NewGauge(gauge("cryo_prewarm_bytes", "Size of all prewarmed snapshots.")),
		gpu:      prometheus.NewGauge(gauge("cryo_prewarm_gpu_bytes", "Device memory that is kept loaded, on all GPUs.")),
		restores: prometheus.NewCounterVec(counter("cryo_restores_total", "Containers that were restored as they asked for, by whether their snapshot was prewarmed."), []string{"prewarmed"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cryo_restore_seconds", Help: "Time from the creation of a container's task until it was restored.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}),
		cold:    prometheus.NewCounterVec(counter("cryo_cold_starts_total", "Containers that were started instead of restored, by the rule that refused the snapshot, or the kind of the error."), []string{"reason"}),
		waiting: prometheus.NewCounter(counter("cryo_restore_waits_total", "Times that the memory of a restored container did not come.")),
		api:     prometheus.NewCounterVec(counter("cryo_kubernetes_errors_total", "Requests to Kubernetes that have failed."), []string{"request"}),

		checkpoints: prometheus.NewCounterVec(counter("cryo_checkpoints_total", "Checkpoints: done, the rule that refused it, or the kind of the error."), []string{"result"}),
		froze: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cryo_checkpoint_freeze_seconds", Help: "Time for which a container stood still for its snapshot.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 14)}),
		took:  prometheus.NewCounterVec(counter("cryo_checkpoint_phase_seconds_total", "Time spent on checkpoints, by phase."), []string{"phase"}),
		taken: prometheus.NewCounter(counter("cryo_checkpoint_bytes_total", "Size of all snapshots that were taken.")),
		sent:  prometheus.NewCounter(counter("cryo_checkpoint_sent_bytes_total", "Bytes that went to registries with checkpoints.")),
	}
	m.registry.MustRegister(m.prewarms, m.phases, m.fetched, m.kept, m.disk, m.gpu, m.restores, m.seconds, m.cold, m.waiting, m.api, m.checkpoints, m.froze, m.took, m.taken, m.sent)
	for _, state := range states {
		m.kept.WithLabelValues(state)
	}
	return m
}

// checkpoint counts one, by the fields of [save.EndedTopic]'s event.
func (m *metrics) checkpoint(fields map[string]*structpb.Value) {
	amount := func(v *structpb.Value) float64 { return max(0, v.GetNumberValue()) }
	m.checkpoints.WithLabelValues(fields["result"].GetStringValue()).Inc()
	if fields["digest"].GetStringValue() == "" {
		return // there is no snapshot
	}
	m.froze.Observe(amount(fields["freeze"]))
	for phase, seconds := range fields["phases"].GetStructValue().GetFields() {
		m.took.WithLabelValues(phase).Add(amount(seconds))
	}
	m.taken.Add(amount(fields["bytes"]))
	m.sent.Add(amount(fields["sent"]))
}

// result is the value of a label for an error.
func result(err error) string {
	if err == nil {
		return "done"
	}
	return failure.Class(err)
}
